// SPDX-License-Identifier: Apache-2.0
// A device's statistics as PyTorch's.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>

#include "weir/device_heap.h"
#include "weir/statistics.h"

namespace weir::pytorch {

// What PyTorch counts apart from the heap.
struct Counts {
  std::int64_t retries = 0, out_of_memory = 0;
};

// PyTorch has a pool of small blocks and one of large ones; Weir has one, which stands under
// "large_pool" as well as under "all". "Segments" are pages; "inactive split" is what is free in
// pages that are in use. `before`: what resetAccumulatedStats() has set aside.
c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& now,
                                                      const Statistics& before,
                                                      const Counts& counts);

// What a device heap counts, and with it what pools with a source hold. Threads: self-synchronised.
class DeviceStatistics {
 public:
  // `heap` must outlive this.
  DeviceStatistics(int device, DeviceHeap& heap) : device_(device), heap_(heap) {}

  void count(std::int64_t Counts::*what);
  // A segment of a source comes, or goes; a block of it becomes live, or free.
  void count_segment(Bytes bytes, bool comes);
  void count_block(Bytes bytes, Bytes requested, bool comes);
  Bytes held_by_sources() const;

  // Tells torch.profiler, if the calling thread is profiled with profile_memory, of a block that
  // came or (`bytes` below zero) went. Returns whether it is.
  bool tell_profiler(void* block, std::int64_t bytes) const;

  c10::CachingDeviceAllocator::DeviceStats stats() const;
  void reset_accumulated();
  void reset_peaks();

 private:
  Statistics now() const;

  const int device_;
  DeviceHeap& heap_;
  mutable std::mutex mutex_;
  Counts counts_;          // guarded by mutex_
  Statistics of_sources_;  // guarded by mutex_; the gauges that sources have
  Statistics before_;      // guarded by mutex_; at the last reset_accumulated()
};

}  // namespace weir::pytorch
