// SPDX-License-Identifier: Apache-2.0
// Launches of graphs that say nothing, as long as nothing is lent.
//
// To tell of a launch takes locks and, from Python, microseconds. So until the first page may be
// lent in the process, or go to the capture of another pool, a launch sets a byte of its thread's,
// looks whether the gate is open, and clears the byte once it has launched. The gate is closed for
// good, and then no byte may be set: whoever looked before is still launching. (The launch needs no
// fence between its two accesses, since close() has the kernel run one on all threads: as
// asymmetric fences are made by Linux's membarrier(), 4.14 on.) What such launches use, the work of
// the whole context covers: so the gate is for Trust::context alone.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace weir {

class LaunchGate {
 public:
  // A byte that is 0 while the gate is open; null: the kernel has no such call, and each launch is
  // to be told.
  static const std::atomic<std::uint8_t>* closed();
  // A byte for a thread, or for one after the other: 1 while the thread launches and has not told.
  // It is there for good.
  static std::atomic<std::uint8_t>* add();
  // From now on launches are told. False: one goes on that was not.
  static bool close();
};

}  // namespace weir
