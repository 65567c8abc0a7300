// SPDX-License-Identifier: Apache-2.0
// What is said of a device heap as a whole, as of one moment: statistics, snapshots, invariants,
// and what a recording begins with.
//
// Threads: self-synchronised; holds every lock that the moment needs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/pool/pools.h"
#include "weir/statistics.h"

namespace weir {

class HeapView {
 public:
  // `device_bytes`: in all, whoever has them; zero: unknown.
  HeapView(Pools& pools, Bytes device_bytes) : pools_(pools), device_bytes_(device_bytes) {}

  // As DeviceHeap has them.
  Statistics statistics() const;
  void reset_peaks();
  HeapSnapshot snapshot() const;
  Bytes free_bytes_used_by(std::span<const Stream> users) const;
  void start_recording(EventSink& sink);
  bool stop_recording(EventSink& sink);
  std::vector<std::string> validate() const;

 private:
  template <class Look>
  void with_pages(Look&& look) const WEIR_NO_THREAD_ANALYSIS;
  template <class Function>
  void with_all_held(Function&& function);
  // At one moment.
  void list_heaps(HeapRegistry::Heaps heaps, HeapSnapshot& snapshot) const WEIR_NO_THREAD_ANALYSIS;
  std::vector<Event> as_events(const HeapSnapshot& snapshot,
                               std::span<const CapturePool::Held> pools) const;

  Pools& pools_;
  const Bytes device_bytes_;
  const Pool::Shared& shared_ = pools_.shared();
};

}  // namespace weir
