// SPDX-License-Identifier: Apache-2.0
// SegmentPool by itself: random programs, and threads.
#include "torch/segment_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/torch/fake_source.h"
#include "torch/device_memory.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

void ignore(const SegmentPool::Segment&, SegmentPool::Change) {}

// Blocks tile each segment, are of the segment's kind, and no two neighbours are free.
void expect_sound(const SegmentPool& pool) {
  for (const SegmentPool::Segment& segment : pool.segments()) {
    Address at = segment.address;
    bool free_before = false;
    for (const auto& [address, block] : segment.blocks) {
      EXPECT_EQ(address, at);
      EXPECT_EQ(block.bytes % kGrain, 0_B);
      EXPECT_FALSE(free_before && !block.live);
      if (block.live) {
        EXPECT_EQ(block.requested <= 1_MiB, segment.is_small);
      }
      free_before = !block.live;
      at = address + block.bytes;
    }
    EXPECT_EQ(at, segment.address + segment.bytes);
  }
}

// As on two ranks, whose drivers give other addresses.
TEST(SegmentPool, PlacesFollowFromTheCallsWhereverTheSegmentsLie) {
  SimDevice device({.check_races = false});
  const std::array streams = {device.new_stream(), device.new_stream()};
  const auto pool_whose_addresses = [&](bool rise) {
    const auto give = [rise, next = std::uint64_t{1} << 40](Bytes, Stream) mutable {
      next = rise ? next + (std::uint64_t{1} << 30) : next - (std::uint64_t{1} << 30);
      return Address{next}.pointer();
    };
    return std::make_unique<SegmentPool>(
        SegmentPool::Source{.allocate = give, .free = [](void*, Bytes) {}}, device, &ignore);
  };
  const auto rising = pool_whose_addresses(true), falling = pool_whose_addresses(false);
  std::mt19937_64 random(1);
  std::vector<std::pair<void*, void*>> live;
  constexpr std::array kSizes = {1_KiB, 1_MiB, 3_MiB, 12_MiB};
  for (int step = 0; step < 3000; ++step) {
    if (live.size() < 20 || (live.size() < 80 && random() % 2 == 0)) {
      const Bytes bytes = kSizes[random() % kSizes.size()];
      const Stream stream = streams[random() % 2];
      live.emplace_back(rising->allocate(bytes, stream), falling->allocate(bytes, stream));
    } else {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(rising->deallocate(live.back().first).ok());
      ASSERT_TRUE(falling->deallocate(live.back().second).ok());
      live.pop_back();
    }
    ASSERT_EQ(rising->layout(), falling->layout()) << "step " << step;
  }
  (void)rising->allocate(1000_B, streams[0]);
  (void)falling->allocate(2000_B, streams[0]);
  EXPECT_EQ(rising->layout().placements, falling->layout().placements);
  EXPECT_NE(rising->layout().hash, falling->layout().hash);
  EXPECT_EQ(rising->placements().back().requested, 1000_B);
  EXPECT_EQ(falling->placements().back().requested, 2000_B);
  EXPECT_EQ(rising->placements().size(), rising->layout().placements);
}

TEST(SegmentPool, BlocksOfRandomProgramsNeverOverlapAndStayOnTheirStream) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    SimDevice device({.check_races = false});
    std::array<Stream, 3> streams;
    for (Stream& stream : streams) stream = device.new_stream();
    const auto source = std::make_shared<FakeSource>(device);
    SegmentPool pool(source_of(source), device, &ignore);
    std::mt19937_64 random(seed);
    const auto upto = [&](std::uint64_t most) { return random() % (most + 1); };
    struct Live {
      Bytes bytes;
      Stream stream;
    };
    std::map<Address, Live> live;
    for (int step = 0; step < 4000; ++step) {
      if (live.empty() || upto(99) < 52) {
        const Bytes bytes{1 + upto(std::uint64_t{1} << (9 + upto(16)))};
        const Stream stream = streams[upto(2)];
        const Address at = Address::of(pool.allocate(bytes, stream));
        const auto next = live.lower_bound(at);
        if (next != live.end()) {
          EXPECT_GE(next->first, at + bytes);
        }
        if (next != live.begin()) {
          EXPECT_GE(at, std::prev(next)->first + std::prev(next)->second.bytes);
        }
        live[at] = {bytes, stream};
      } else {
        auto victim = live.begin();
        std::advance(victim, static_cast<std::ptrdiff_t>(upto(live.size() - 1)));
        const auto found = pool.find(victim->first.pointer());
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->stream, victim->second.stream);
        EXPECT_EQ(found->requested, victim->second.bytes);
        EXPECT_TRUE(pool.deallocate(victim->first.pointer()).ok());
        EXPECT_FALSE(pool.find(victim->first.pointer()).has_value());
        live.erase(victim);
      }
      if (step % 500 == 0) expect_sound(pool);
      if (step % 1000 == 999) pool.empty();
    }
    for (const auto& [at, block] : live) EXPECT_TRUE(pool.deallocate(at.pointer()).ok());
    expect_sound(pool);
    pool.empty();
    EXPECT_EQ(source->held, 0u);
    EXPECT_FALSE(pool.has_segments());
  }
}

// As with cudaFree(): the rest of the segment may serve the next request at once.
TEST(SegmentPool, WithoutACacheAFreeWaitsForWorkThatNobodyToldOfAndLeavesNothingBehind) {
  SimDevice device;
  const Stream stream = device.new_stream(), reader = device.new_stream();
  const auto source = std::make_shared<FakeSource>(device);
  SegmentPool::Source uncached = source_of(source);
  uncached.caches = false;
  SegmentPool pool(uncached, device, &ignore);
  void* const beside = pool.allocate(512_KiB, stream);
  void* const x = pool.allocate(512_KiB, stream);
  ASSERT_TRUE(device.launch(reader, Reads(x, 512_KiB), 50_ms).ok());
  EXPECT_TRUE(pool.deallocate(x).ok());
  void* const y = pool.allocate(512_KiB, stream);
  ASSERT_TRUE(device.launch(stream, Writes(y, 512_KiB), 1_ms).ok());
  EXPECT_TRUE(pool.deallocate(y).ok());
  EXPECT_TRUE(pool.deallocate(beside).ok());
  EXPECT_TRUE(pool.deallocate(pool.allocate(3_MiB, stream)).ok());
  EXPECT_THAT(source->asked, testing::ElementsAre((2_MiB).count, (4_MiB).count));
  EXPECT_EQ(source->held, 0u);
  EXPECT_EQ(device.race_count(), 0u);
  // A free whose wait fails leaves the block as it was.
  void* const kept = pool.allocate(1_MiB, stream);
  device.fail(DeviceCall::synchronize_context, 1);
  EXPECT_FALSE(pool.deallocate(kept).ok());
  EXPECT_TRUE(pool.find(kept).has_value());
  EXPECT_TRUE(pool.deallocate(kept).ok());
}

// `source` is not meant for threads: each of them has a segment beforehand.
TEST(SegmentPool, ThreadsUseTheirStreamsAtOnce) {
  SimDevice device;
  const auto source = std::make_shared<FakeSource>(device);
  SegmentPool pool(source_of(source), device, &ignore);
  std::array<Stream, 4> streams;
  for (Stream& stream : streams) {
    stream = device.new_stream();
    EXPECT_TRUE(pool.deallocate(pool.allocate(1_MiB, stream)).ok());
  }
  std::vector<std::thread> threads;
  for (const Stream stream : streams) {
    threads.emplace_back([&pool, stream] {
      for (int i = 0; i < 2000; ++i) {
        std::array<void*, 3> blocks;
        for (void*& block : blocks) block = pool.allocate(100_KiB, stream);
        for (void* const block : blocks) EXPECT_TRUE(pool.deallocate(block).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_sound(pool);
  EXPECT_EQ(source->asked.size(), streams.size());
}

}  // namespace
}  // namespace weir::pytorch
