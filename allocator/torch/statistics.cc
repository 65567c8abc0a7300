// SPDX-License-Identifier: Apache-2.0
#include "torch/statistics.h"

#include <algorithm>

#include "torch/versions.h"

namespace weir::pytorch {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

std::int64_t number(std::uint64_t n) { return static_cast<std::int64_t>(n); }

StatArray stats(const Stat& stat) {
  StatArray all;
  all[static_cast<std::size_t>(StatType::AGGREGATE)] = stat;
  all[static_cast<std::size_t>(StatType::LARGE_POOL)] = stat;
  return all;
}

// `before`: the gauge when the accumulated figures were last reset.
StatArray stats(const Gauge& now, const Gauge& before, const Stat& of_sources = {}) {
  Stat stat = of_sources;
  stat.current += number(now.current);
  stat.peak += number(now.peak);
  stat.allocated += number(now.total - before.total);
  stat.freed += number((now.total - now.current) - (before.total - before.current));
  return stats(stat);
}

void change(Stat& stat, std::uint64_t by, bool up) { up ? stat.increase(by) : stat.decrease(by); }

}  // namespace

c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& now,
                                                      const Statistics& before,
                                                      const Counts& counts,
                                                      const SourceStats& sources,
                                                      [[maybe_unused]] const PoolStats& pools) {
  c10::CachingDeviceAllocator::DeviceStats all;
  all.allocation = all.active = stats(now.live_blocks, before.live_blocks, sources.blocks);
  all.allocated_bytes = all.active_bytes = stats(now.live_bytes, before.live_bytes, sources.bytes);
  all.requested_bytes = stats(now.requested_bytes, before.requested_bytes, sources.requested);
  all.reserved_bytes = stats(now.reserved_bytes, before.reserved_bytes, sources.reserved);
  all.segment = stats(now.pages, before.pages, sources.segments);
  // Blocks that sleep are live, and on no page.
  const std::uint64_t leased = now.leased_bytes.current;
  const std::uint64_t split = leased - std::min(leased, now.live_bytes.current);
  const Gauge inactive{.current = split, .peak = split};
  all.inactive_split_bytes = stats(inactive, inactive);
  all.num_alloc_retries = counts.retries;
  all.num_ooms = counts.out_of_memory;
  all.num_device_alloc = all.segment.front().allocated;
  all.num_device_free = all.segment.front().freed;
  all.max_split_size = -1;  // any block may be split
#if WEIR_TORCH_SINCE(12)
  all.num_oom_rejections = counts.rejections;
#endif
#if WEIR_TORCH_SINCE(13)
  for (const auto& [id, pool] : pools) {
    all.reserved_bytes_by_private_pools[id] = stats(pool.reserved);
  }
#endif
  return all;
}

void DeviceStatistics::count(std::int64_t Counts::*what) {
  const std::lock_guard lock(mutex_);
  ++(counts_.*what);
}

void DeviceStatistics::count_segment(PoolId pool, Bytes bytes, bool comes) {
  const std::lock_guard lock(mutex_);
  change(pools_[pool].reserved, bytes.count, comes);
  change(sources_.reserved, bytes.count, comes);
  change(sources_.segments, 1, comes);
}

void DeviceStatistics::count_block(Bytes bytes, Bytes requested, bool comes) {
  const std::lock_guard lock(mutex_);
  change(sources_.blocks, 1, comes);
  change(sources_.bytes, bytes.count, comes);
  change(sources_.requested, requested.count, comes);
}

Bytes DeviceStatistics::held_by_sources() const {
  const std::lock_guard lock(mutex_);
  return {static_cast<std::uint64_t>(sources_.reserved.current)};
}

bool DeviceStatistics::tell_profiler(void* block, std::int64_t bytes) {
  if (!c10::memoryProfilingEnabled()) return false;
  const c10::CachingDeviceAllocator::DeviceStats now = stats();
  c10::reportMemoryUsageToProfiler(
      block, bytes, static_cast<std::size_t>(now.allocated_bytes.front().current),
      static_cast<std::size_t>(now.reserved_bytes.front().current),
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_)));
  return true;
}

c10::CachingDeviceAllocator::DeviceStats DeviceStatistics::stats() {
  const Statistics now = heap_.statistics();
  const std::lock_guard lock(mutex_);
  return device_stats(now, before_, counts_, sources_, pools_);
}

c10::CachingDeviceAllocator::DeviceStats DeviceStatistics::stats(const Pools::Held& held) {
  note_pools(held);
  return stats();
}

void DeviceStatistics::note_pools(const Pools::Held& held) {
  const std::lock_guard lock(mutex_);
  const auto is_gone = [&](const auto& pool) {
    return pool.second.highest > 0 && !held.contains(pool.first);
  };
  std::erase_if(
      pools_, [&](const auto& pool) { return is_gone(pool) && pool.second.reserved.current == 0; });
  for (auto& pool : pools_) {
    Stat& reserved = pool.second.reserved;
    if (is_gone(pool)) change(reserved, static_cast<std::uint64_t>(reserved.current), false);
  }
  for (const auto& [id, bytes] : held) {
    if (bytes.second == 0_B) continue;
    auto& [reserved, highest] = pools_[id];
    const auto [current, peak] = std::pair(number(bytes.first.count), number(bytes.second.count));
    if (peak > highest) {
      reserved.increase(static_cast<std::size_t>(peak - reserved.current));
      highest = peak;
    }
    change(reserved, static_cast<std::uint64_t>(std::abs(current - reserved.current)),
           current > reserved.current);
  }
}

void DeviceStatistics::reset_accumulated() {
  Statistics now = heap_.statistics();
  const std::lock_guard lock(mutex_);
  before_ = std::move(now);
  counts_ = {};
  for (Stat* const each : sources_.all()) each->reset_accumulated();
  for (auto& [id, pool] : pools_) pool.reserved.reset_accumulated();
}

void DeviceStatistics::reset_peaks() {
  heap_.reset_peaks();
  const std::lock_guard lock(mutex_);
  for (Stat* const each : sources_.all()) each->reset_peak();
  for (auto& [id, pool] : pools_) pool.reserved.reset_peak();
}

}  // namespace weir::pytorch
