// SPDX-License-Identifier: Apache-2.0
#include "torch/statistics.h"

#include <algorithm>
#include <array>
#include <utility>

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
Stat stat(const Gauge& now, const Gauge& before) {
  Stat stat;
  stat.current = number(now.current);
  stat.peak = number(now.peak);
  stat.allocated = number(now.total - before.total);
  stat.freed = number((now.total - now.current) - (before.total - before.current));
  return stat;
}

// Of what pools with a source hold.
constexpr std::array kGaugesOfSources = {&Statistics::live_blocks,     &Statistics::live_bytes,
                                         &Statistics::requested_bytes, &Statistics::leased_bytes,
                                         &Statistics::reserved_bytes,  &Statistics::pages};

void change(Gauge& gauge, std::uint64_t by, bool up) { up ? gauge.add(by) : gauge.subtract(by); }

}  // namespace

c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& now,
                                                      const Statistics& before,
                                                      const Counts& counts) {
  c10::CachingDeviceAllocator::DeviceStats all;
  all.allocation = all.active = stats(stat(now.live_blocks, before.live_blocks));
  all.allocated_bytes = all.active_bytes = stats(stat(now.live_bytes, before.live_bytes));
  all.requested_bytes = stats(stat(now.requested_bytes, before.requested_bytes));
  all.reserved_bytes = stats(stat(now.reserved_bytes, before.reserved_bytes));
  all.segment = stats(stat(now.pages, before.pages));
  // Blocks that sleep are live, and on no page.
  const std::uint64_t leased = now.leased_bytes.current;
  const std::uint64_t split = leased - std::min(leased, now.live_bytes.current);
  const Gauge inactive{.current = split, .peak = split};
  all.inactive_split_bytes = stats(stat(inactive, inactive));
  all.num_alloc_retries = counts.retries;
  all.num_ooms = counts.out_of_memory;
  all.num_device_alloc = number(now.pages.total - before.pages.total);
  all.num_device_free =
      number((now.pages.total - now.pages.current) - (before.pages.total - before.pages.current));
  all.max_split_size = -1;  // any block may be split
  return all;
}

void DeviceStatistics::count(std::int64_t Counts::*what) {
  const std::lock_guard lock(mutex_);
  ++(counts_.*what);
}

void DeviceStatistics::count_segment(Bytes bytes, bool comes) {
  const std::lock_guard lock(mutex_);
  change(of_sources_.reserved_bytes, bytes.count, comes);
  change(of_sources_.pages, 1, comes);
}

void DeviceStatistics::count_block(Bytes bytes, Bytes requested, bool comes) {
  const std::lock_guard lock(mutex_);
  change(of_sources_.live_blocks, 1, comes);
  change(of_sources_.live_bytes, bytes.count, comes);
  change(of_sources_.leased_bytes, bytes.count, comes);
  change(of_sources_.requested_bytes, requested.count, comes);
}

Bytes DeviceStatistics::held_by_sources() const {
  const std::lock_guard lock(mutex_);
  return {of_sources_.reserved_bytes.current};
}

// (The sum of two peaks may be more than there was at any one time.)
Statistics DeviceStatistics::now() const {
  Statistics all = heap_.statistics();
  const std::lock_guard lock(mutex_);
  for (const auto gauge : kGaugesOfSources) {
    (all.*gauge).current += (of_sources_.*gauge).current;
    (all.*gauge).peak += (of_sources_.*gauge).peak;
    (all.*gauge).total += (of_sources_.*gauge).total;
  }
  return all;
}

bool DeviceStatistics::tell_profiler(void* block, std::int64_t bytes) const {
  if (!c10::memoryProfilingEnabled()) return false;
  const Statistics now = this->now();
  c10::reportMemoryUsageToProfiler(
      block, bytes, now.live_bytes.current, now.reserved_bytes.current,
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_)));
  return true;
}

c10::CachingDeviceAllocator::DeviceStats DeviceStatistics::stats() const {
  const Statistics now = this->now();
  const std::lock_guard lock(mutex_);
  return device_stats(now, before_, counts_);
}

void DeviceStatistics::reset_accumulated() {
  Statistics now = this->now();
  const std::lock_guard lock(mutex_);
  before_ = std::move(now);
  counts_ = {};
}

void DeviceStatistics::reset_peaks() {
  heap_.reset_peaks();
  const std::lock_guard lock(mutex_);
  for (const auto gauge : kGaugesOfSources) {
    (of_sources_.*gauge).peak = (of_sources_.*gauge).current;
  }
}

}  // namespace weir::pytorch
