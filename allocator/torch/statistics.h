// SPDX-License-Identifier: Apache-2.0
// A device's statistics as PyTorch's.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <map>
#include <mutex>

#include "torch/pools.h"
#include "weir/device_heap.h"
#include "weir/statistics.h"

namespace weir::pytorch {

// What PyTorch counts apart from the heap.
struct Counts {
  std::int64_t retries = 0, out_of_memory = 0, rejections = 0;
};

// What pools with a source hold.
struct SourceStats {
  using Stat = c10::CachingAllocator::Stat;
  Stat blocks, bytes, requested, segments, reserved;
  std::array<Stat*, 5> all() { return {&blocks, &bytes, &requested, &segments, &reserved}; }
};

// What each pool has reserved. A pool of the heap's is looked at when PyTorch asks: what it gained
// and lost meanwhile is not in `allocated` and `freed`, unless it had never held so much.
struct PoolStat {
  SourceStats::Stat reserved;
  std::int64_t highest = 0;  // ever, as far as is in `reserved`
};
using PoolStats = std::map<PoolId, PoolStat>;

// PyTorch has a pool of small blocks and one of large ones; Weir has one, which stands under
// "large_pool" as well as under "all". "Segments" are pages; "inactive split" is what is free in
// pages that are in use. `before`: what resetAccumulatedStats() has set aside. A peak is the sum of
// two, which may be more than there was at any one time.
c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& now,
                                                      const Statistics& before,
                                                      const Counts& counts,
                                                      const SourceStats& sources = {},
                                                      const PoolStats& pools = {});

// What a device heap counts, and with it what pools with a source hold. Threads: self-synchronised.
class DeviceStatistics {
 public:
  // `heap` must outlive this.
  DeviceStatistics(int device, DeviceHeap& heap) : device_(device), heap_(heap) {}

  void count(std::int64_t Counts::*what);
  // A segment of a source comes, or goes; a block of it becomes live, or free.
  void count_segment(PoolId pool, Bytes bytes, bool comes);
  void count_block(Bytes bytes, Bytes requested, bool comes);
  Bytes held_by_sources() const;

  // Tells torch.profiler, if the calling thread is profiled with profile_memory, of a block that
  // came or (`bytes` below zero) went. Returns whether it is.
  bool tell_profiler(void* block, std::int64_t bytes);

  // `held`: by pools of the heap. One that is no more holds nothing, and is told of once more.
  c10::CachingDeviceAllocator::DeviceStats stats(const Pools::Held& held);
  c10::CachingDeviceAllocator::DeviceStats stats();  // with pools of the heap as they were last
  void reset_accumulated();
  void reset_peaks();

 private:
  void note_pools(const Pools::Held& held);

  const int device_;
  DeviceHeap& heap_;
  mutable std::mutex mutex_;
  Counts counts_;        // guarded by mutex_
  SourceStats sources_;  // guarded by mutex_
  PoolStats pools_;      // guarded by mutex_
  Statistics before_;    // guarded by mutex_; the heap's at the last reset_accumulated()
};

}  // namespace weir::pytorch
