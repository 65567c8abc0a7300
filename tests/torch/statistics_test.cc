// SPDX-License-Identifier: Apache-2.0
#include "torch/statistics.h"

#include <gtest/gtest.h>

#include <array>

#include "torch/versions.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

// What idles within pages in use. Blocks that sleep are live, and on no page.
TEST(DeviceStats, NothingIsInactiveWhereMemorySleeps) {
  Statistics now;
  now.leased_bytes.current = 30;
  now.live_bytes.current = 20;
  const auto inactive = [&] { return device_stats(now, {}, {}).inactive_split_bytes[0].current; };
  EXPECT_EQ(inactive(), 10);
  now.live_bytes.current = 40;
  EXPECT_EQ(inactive(), 0);
}

// What is accumulated counts from the last reset, what is current does not.
TEST(DeviceStats, EachFigureHasItsPlace) {
  Statistics before, now;
  before.live_blocks = {.current = 1, .peak = 2, .total = 10};
  now.live_blocks = {.current = 3, .peak = 7, .total = 100};
  before.live_bytes = {.current = 20, .peak = 30, .total = 40};
  now.live_bytes = {.current = 50, .peak = 60, .total = 700};
  before.requested_bytes = {.current = 5, .peak = 6, .total = 7};
  now.requested_bytes = {.current = 8, .peak = 9, .total = 1000};
  before.reserved_bytes = {.current = 11, .peak = 12, .total = 13};
  now.reserved_bytes = {.current = 14, .peak = 15, .total = 2000};
  before.pages = {.current = 1, .peak = 1, .total = 4};
  now.pages = {.current = 2, .peak = 5, .total = 9};
  now.leased_bytes.current = 55;
  const auto all = device_stats(now, before, {.retries = 17, .out_of_memory = 18});
  const auto expect = [](const auto& stats, std::int64_t current, std::int64_t peak,
                         std::int64_t allocated, std::int64_t freed) {
    for (const std::size_t kind : {0, 2}) {  // all, and large ones
      EXPECT_EQ(stats[kind].current, current);
      EXPECT_EQ(stats[kind].peak, peak);
      EXPECT_EQ(stats[kind].allocated, allocated);
      EXPECT_EQ(stats[kind].freed, freed);
    }
    EXPECT_EQ(stats[1].current + stats[1].peak + stats[1].allocated + stats[1].freed, 0);
  };
  expect(all.allocation, 3, 7, 90, 88);
  expect(all.active, 3, 7, 90, 88);
  expect(all.allocated_bytes, 50, 60, 660, 630);
  expect(all.active_bytes, 50, 60, 660, 630);
  expect(all.requested_bytes, 8, 9, 993, 990);
  expect(all.reserved_bytes, 14, 15, 1987, 1984);
  expect(all.segment, 2, 5, 5, 4);
  expect(all.inactive_split_bytes, 5, 5, 0, 0);
  EXPECT_EQ(all.num_alloc_retries, 17);
  EXPECT_EQ(all.num_ooms, 18);
  EXPECT_EQ(all.num_device_alloc, 5);
  EXPECT_EQ(all.num_device_free, 4);
  EXPECT_EQ(all.max_split_size, -1);
}

#if WEIR_TORCH_SINCE(13)
// A pool of the heap's is looked at now and then; the most that it held is not missed.
TEST(DeviceStats, APoolThatGrewAndShrankUnseenHasItsPeak) {
  const PoolId pool{0, 1};
  SimDevice device;
  DeviceHeap heap(device);
  DeviceStatistics statistics(0, heap);
  const auto look = [&](Bytes now, Bytes peak) {
    const Pools::Held held{{pool, {now, peak}}};
    const auto all = statistics.stats(held).reserved_bytes_by_private_pools;
    const auto& stat = all.at(pool)[0];
    return std::array{stat.current, stat.peak, stat.allocated, stat.freed};
  };
  EXPECT_EQ(look(2_B, 5_B), (std::array<std::int64_t, 4>{2, 5, 5, 3}));
  EXPECT_EQ(look(4_B, 5_B), (std::array<std::int64_t, 4>{4, 5, 7, 3}));
  statistics.reset_peaks();
  statistics.reset_accumulated();
  EXPECT_EQ(look(0_B, 5_B), (std::array<std::int64_t, 4>{0, 4, 0, 4})) << "5 was before";
  EXPECT_EQ(look(3_B, 5_B), (std::array<std::int64_t, 4>{3, 4, 3, 4}));
  // Once it is gone: it holds nothing, and then is told of no more.
  const Pools::Held none;
  EXPECT_EQ(statistics.stats(none).reserved_bytes_by_private_pools.at(pool)[0].current, 0);
  EXPECT_EQ(statistics.stats(none).reserved_bytes_by_private_pools.count(pool), 0U);
}

// A pool with a source tells of each segment.
TEST(DeviceStats, SegmentsOfASourceAreThoseOfItsPool) {
  SimDevice device;
  DeviceHeap heap(device);
  DeviceStatistics statistics(0, heap);
  statistics.count_segment({0, 7}, 3_B, /*comes=*/true);
  statistics.count_segment({0, 7}, 3_B, /*comes=*/false);
  const auto all = statistics.stats().reserved_bytes_by_private_pools;
  EXPECT_EQ(all.at({0, 7})[0].peak, 3);
  EXPECT_EQ(all.at({0, 7})[0].current, 0);
}
#endif

}  // namespace
}  // namespace weir::pytorch
