// SPDX-License-Identifier: Apache-2.0
// Threads that run random programs on one device heap over the simulated device, and record every
// call. The programs keep the contract: a block's own calls don't overlap, and uses on other
// streams are fenced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/property/history.h"
#include "weir/device_heap.h"
#include "weir/types.h"

namespace weir::test {

struct Scenario {
  std::uint64_t seed = 1;
  std::uint32_t threads = 4;
  std::uint32_t shared_streams = 1;
  std::uint32_t own_streams = 1;  // of each thread
  std::uint32_t steps = 2000;     // of each thread
  Bytes memory = 8_GiB;
  HeapOptions heap = {};
  std::vector<Bytes> hot;                 // sizes of most requests; none: all sizes alike
  std::uint64_t most_held = 24;           // blocks, by each thread
  bool hammers = false;                   // little but allocate and deallocate
  bool interrupts = true;                 // threads are interrupted under the heap's locks
  bool launches = true;                   // blocks are used, so that the device sees a missing wait
  bool retires = false;                   // own streams come and go
  bool limits = false;                    // the limit changes all the time
  bool frees_when_out_of_memory = false;  // by a callback
};

struct Outcome {
  History history;
  // What the threads themselves and the device saw that can't be.
  std::vector<std::string> complaints;
  std::uint64_t allocations = 0, out_of_memory = 0, handed_over = 0;
};

Outcome run(const Scenario& scenario);

}  // namespace weir::test
