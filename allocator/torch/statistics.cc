// SPDX-License-Identifier: Apache-2.0
#include "torch/statistics.h"

#include <algorithm>

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

Stat level(std::uint64_t current, std::uint64_t peak) {
  Stat stat;
  stat.current = number(current);
  stat.peak = number(peak);
  return stat;
}

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
  all.inactive_split_bytes = stats(level(split, split));
  all.num_alloc_retries = counts.retries;
  all.num_ooms = counts.out_of_memory;
  all.num_device_alloc = number(now.pages.total - before.pages.total);
  all.num_device_free =
      number((now.pages.total - now.pages.current) - (before.pages.total - before.pages.current));
  all.max_split_size = -1;  // any block may be split
  return all;
}

}  // namespace weir::pytorch
