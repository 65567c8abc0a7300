// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: how the reuse policies differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"

namespace weir {
namespace {

using test::CoreHeap;
using testing::IsEmpty;

// Beside so much in use, some 100 MiB more are within the slack: growing by that costs nothing.
constexpr Bytes kManyWeights = 20_GiB;

// `first` is freed while stream b still uses it; `next` is then asked for, of the same size.
class HeapPolicies : public CoreHeap {
 protected:
  struct Outcome {
    bool same_place;
    std::uint64_t waits;
    Bytes held;
  };
  // Beside `weights` that stay. Between free and request, `between` others.
  Outcome run(ReusePolicy policy, Bytes weights = 0_B, Bytes limit = 0_B, int between = 0) {
    DeviceHeap heap(device_, {.limit = limit, .reuse = policy});
    void* const kept = allocate(heap, weights, c_);
    void* const other = allocate(heap, 2_MiB, a_);
    void* const first = allocate(heap, 64_MiB, a_);
    write(a_, first, 64_MiB);
    write_after(b_, a_, first, 64_MiB, 50_ms);
    EXPECT_TRUE(heap.fence(first, b_).ok());
    void* const behind = allocate(heap, 2_MiB, a_);
    free(heap, first);
    for (int i = 0; i < between; ++i) free(heap, allocate(heap, 2_MiB, c_));
    const std::uint64_t waits = heap.statistics().stream_waits;
    void* const next = allocate(heap, 64_MiB, a_);
    write(a_, next, 64_MiB);
    EXPECT_THAT(device_.races(), IsEmpty());
    EXPECT_THAT(heap.validate(), IsEmpty());
    const Outcome outcome{next == first, heap.statistics().stream_waits - waits,
                          Bytes{heap.statistics().reserved_bytes.current} - weights};
    for (void* const block : {next, behind, other, kept}) free(heap, block);
    device_.finish();
    return outcome;
  }
};

// Work of stream b ends while the driver makes memory for a slab, or later.
TEST_F(HeapPolicies, ASlabThatIsMadeIsUsedThoughOthersWouldDoByThen) {
  constexpr Bytes kBlock = 128_KiB;
  bool made = false;
  for (Nanoseconds runs = 5_us; runs < 1_ms; runs += 5_us) {
    DeviceHeap heap(device_, {.reuse = ReusePolicy::no_wait});
    std::vector<void*> blocks(15);  // no more fit into a slab
    for (void*& block : blocks) block = allocate(heap, kBlock, a_);
    write_after(b_, a_, blocks.front(), kBlock, runs);
    EXPECT_TRUE(heap.fence(blocks.front(), b_).ok());
    free(heap, blocks.front());
    void* const next = allocate(heap, kBlock, a_);
    write(a_, next, kBlock);
    EXPECT_THAT(heap.validate(), IsEmpty()) << runs.count << " ns";
    made = made || next != blocks.front();
    blocks.front() = next;
    for (void* const block : blocks) free(heap, block);
    device_.finish();
  }
  EXPECT_TRUE(made);
}

TEST_F(HeapPolicies, WaitTakesFreeMemoryThoughItsFenceIsRunning) {
  for (const Bytes weights : {0_B, kManyWeights}) {
    const Outcome outcome = run(ReusePolicy::wait, weights);
    EXPECT_TRUE(outcome.same_place);
    EXPECT_EQ(outcome.waits, 1u);
    EXPECT_EQ(outcome.held, 68_MiB);
  }
}

TEST_F(HeapPolicies, BalancedWaitsWhereGrowingWouldRaiseThePeak) {
  const Outcome outcome = run(ReusePolicy::balanced);
  EXPECT_TRUE(outcome.same_place);
  EXPECT_EQ(outcome.waits, 1u);
  EXPECT_EQ(outcome.held, 68_MiB);
}

TEST_F(HeapPolicies, BalancedGrowsWhereThatCostsNothingAndTheFenceIsRecent) {
  const Outcome recent = run(ReusePolicy::balanced, kManyWeights);
  EXPECT_FALSE(recent.same_place);
  EXPECT_EQ(recent.waits, 0u);
  const Outcome old = run(ReusePolicy::balanced, kManyWeights, 0_B, 100);
  EXPECT_TRUE(old.same_place);
  EXPECT_EQ(old.waits, 1u);
}

// A step of random lengths on one stream, whose activations live until the end, or one that hands
// its input to another stream. The host queues far ahead.
class HeapSoaks : public CoreHeap {
 protected:
  void train(DeviceHeap& heap, Bytes unit) {
    std::vector<void*> kept;
    for (const std::uint64_t units : {1, 3, 1, 1, 4, 4, 1, 1}) {
      void* const temporary = allocate(heap, unit * units, a_);
      kept.push_back(allocate(heap, unit * units, a_));
      write(a_, kept.back(), unit * units);
      free(heap, temporary);
    }
    for (auto block = kept.rbegin(); block != kept.rend(); ++block) {
      free(heap, allocate(heap, unit, a_));
      free(heap, *block);
    }
  }
  void serve(DeviceHeap& heap, Bytes unit, Stream side) {
    void* const given = allocate(heap, unit, a_);
    write(a_, given, unit);
    write_after(side, a_, given, unit, 1_ms);
    for (const std::uint64_t units : {3, 1, 4, 4, 1}) {
      void* const block = allocate(heap, unit * units, side);
      write(side, block, unit * units);
      free(heap, block);
    }
    EXPECT_TRUE(heap.fence(given, side).ok());
    free(heap, given);
  }
  void soak(DeviceHeap& heap, int steps, Bytes largest) {
    std::mt19937_64 random(8);
    for (int i = 0; i < steps; ++i) {
      const Bytes unit = round_up(256_KiB + Bytes{random() % largest.count}, 512_B);
      if (random() % 2 == 0) {
        train(heap, unit);
      } else {
        serve(heap, unit, random() % 2 == 0 ? b_ : c_);
      }
    }
    EXPECT_EQ(heap.statistics().host_waits, 0u);
    EXPECT_THAT(device_.races(), IsEmpty());
    EXPECT_THAT(heap.validate(), IsEmpty());
    device_.finish();
  }
  static double ratio(const DeviceHeap& heap) {
    const Statistics statistics = heap.statistics();
    return static_cast<double>(statistics.reserved_bytes.peak) /
           static_cast<double>(statistics.live_bytes.peak);
  }
};

TEST_F(HeapSoaks, AndBalancedHoldsATenthBesideWhatMovingLeaves) {
  DeviceHeap heap(device_, {.reuse = ReusePolicy::balanced});
  soak(heap, 2000, 16_MiB);
  EXPECT_LE(ratio(heap), 1.13);
}

// Blocks that stay keep pages from other streams, so that moving does not save what it is to save.
TEST_F(HeapSoaks, AndBalancedHoldsNoTenthBesideTheSlackWhereMovingWasGivenUp) {
  DeviceHeap heap(device_, {.reuse = ReusePolicy::balanced});
  for (int i = 0; i < 6; ++i) {
    for (const Stream stream : {a_, b_, c_}) {
      void* const between = allocate(heap, 6_MiB, stream);
      (void)allocate(heap, 512_KiB, stream);
      free(heap, between);
    }
  }
  soak(heap, 2000, 8_MiB);
  EXPECT_LE(ratio(heap), 1.16);
}

TEST_F(HeapPolicies, WaitCreatesNothingWhileFreeMemoryFits) {
  DeviceHeap heap(device_, {.reuse = ReusePolicy::wait});
  free(heap, allocate(heap, 256_MiB, a_));
  const std::uint64_t created = device_.calls(DeviceCall::create);
  std::mt19937_64 random(6);
  for (int round = 0; round < 100; ++round) {
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(allocate(heap, 1_MiB * (1 + random() % 31), a_));
      ASSERT_TRUE(device_.launch(b_, 200_us).ok());
    }
    ASSERT_TRUE(heap.fence(blocks, b_).ok());
    for (void* const block : blocks) free(heap, block);
  }
  EXPECT_EQ(device_.calls(DeviceCall::create), created);
  EXPECT_EQ(device_.host_waits(), 0u);
}

}  // namespace
}  // namespace weir
