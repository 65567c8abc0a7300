// SPDX-License-Identifier: Apache-2.0
// The blocks that a stream heap caches: who gets them, and who waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_cached_fixture.h"

namespace weir {
namespace {

using test::BlocksAtHand;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(BlocksAtHand, TheNewestOfASizeComesBackFirst) {
  DeviceHeap heap(device_);
  void* const keep = allocate(heap, 1_KiB, a_);
  std::vector<void*> blocks;
  for (const Bytes size : {4_KiB, 4_KiB, 8_KiB, 4_KiB}) blocks.push_back(allocate(heap, size, a_));
  const std::vector<std::uint64_t> calls = all_calls();
  for (void* const block : blocks) free(heap, block);
  EXPECT_EQ(kept(heap), 4u);
  EXPECT_EQ(allocate(heap, 4_KiB, a_), blocks[3]);
  EXPECT_EQ(allocate(heap, 4_KiB, a_), blocks[1]);
  EXPECT_EQ(allocate(heap, 4_KiB - 511_B, a_), blocks[0]);
  EXPECT_EQ(heap.find(blocks[0])->requested, 4_KiB - 511_B);
  EXPECT_EQ(kept(heap), 1u);
  EXPECT_EQ(allocate(heap, 8_KiB, a_), blocks[2]);
  EXPECT_EQ(all_calls(), calls);
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, keep);
}

TEST_F(BlocksAtHand, ARequestOfAnotherSizeGivesAllBack) {
  DeviceHeap heap(device_);
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(allocate(heap, 4_KiB, a_));
  for (std::size_t i = 1; i < 4; ++i) free(heap, blocks[i]);
  EXPECT_EQ(kept(heap), 3u);
  // Together they make room for it, where the lowest began.
  EXPECT_EQ(allocate(heap, 12_KiB, a_), blocks[1]);
  EXPECT_EQ(kept(heap), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(BlocksAtHand, AreFewAndTheOldestGoBack) {
  DeviceHeap heap(device_);
  std::vector<void*> blocks;
  for (std::uint64_t i = 1; i <= 20; ++i) blocks.push_back(allocate(heap, kGrain * i, a_));
  for (void* const block : blocks) {
    free(heap, block);
    ASSERT_THAT(heap.validate(), IsEmpty());
  }
  EXPECT_EQ(kept(heap), TestAccess::kMostCached);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(is_cached(heap, blocks[i]), i >= blocks.size() - TestAccess::kMostCached);
  }
}

TEST_F(BlocksAtHand, AreNobodysBlocks) {
  DeviceHeap heap(device_);
  void* const beside = allocate(heap, 4_KiB, a_);
  void* const small = allocate(heap, 4_KiB, a_);
  void* const large = allocate(heap, 4_MiB, a_);
  free(heap, small);
  free(heap, large);
  ASSERT_TRUE(is_cached(heap, small));
  ASSERT_TRUE(is_cached(heap, large));
  for (void* const block : {small, large}) {
    EXPECT_FALSE(heap.find(block).has_value());
    for (const Status& status :
         {heap.deallocate(block), heap.fence(block, b_), heap.record_stream(block, b_)}) {
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code(), ErrorCode::unknown_pointer);
    }
  }
  const Statistics statistics = heap.statistics();
  EXPECT_EQ(statistics.live_blocks.current, 1u);
  EXPECT_EQ(statistics.live_bytes.current, (4_KiB).count);
  EXPECT_EQ(kept(heap), 2u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, beside);
}

TEST_F(BlocksAtHand, ASnapshotShowsNone) {
  DeviceHeap heap(device_);
  free(heap, allocate(heap, 4_KiB, a_));
  free(heap, allocate(heap, 4_MiB, b_));
  ASSERT_EQ(kept(heap, 1), 1u);
  const HeapSnapshot snapshot = heap.snapshot();
  EXPECT_THAT(snapshot.blocks, IsEmpty());
  EXPECT_THAT(snapshot.pages, SizeIs(2));
  for (const PageInfo& page : snapshot.pages) {
    EXPECT_EQ(page.used, 0_B);
    EXPECT_EQ(page.lease, std::nullopt);
  }
  EXPECT_EQ(kept(heap, 0) + kept(heap, 1), 0u);
}

TEST_F(BlocksAtHand, ASmallOnesFenceIsWaitedForOnce) {
  for (const ReusePolicy policy : {ReusePolicy::wait, ReusePolicy::balanced}) {
    DeviceHeap heap(device_, {.reuse = policy});
    void* const keep = allocate(heap, 1_KiB, a_);
    void* const block = allocate(heap, 4_KiB, a_);
    use_elsewhere(heap, block, 4_KiB, a_, b_);
    free(heap, block);
    ASSERT_TRUE(is_cached(heap, block));
    const std::uint64_t before = waits();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(allocate(heap, 4_KiB, a_), block);
      write(a_, block, 4_KiB);
      free(heap, block);
      EXPECT_EQ(waits(), before + 1);
    }
    EXPECT_EQ(heap.statistics().stream_waits, 1u);
    EXPECT_THAT(device_.races(), IsEmpty());
    EXPECT_THAT(heap.validate(), IsEmpty());
    free(heap, keep);
    device_.finish();
  }
}

TEST_F(BlocksAtHand, ALargeOneWithAFenceIsKeptWhereThePolicyIsToWait) {
  for (const ReusePolicy policy : {ReusePolicy::wait, ReusePolicy::balanced}) {
    DeviceHeap heap(device_, {.reuse = policy});
    void* const block = allocate(heap, 4_MiB, a_);
    use_elsewhere(heap, block, 4_MiB, a_, b_);
    free(heap, block);
    EXPECT_EQ(is_cached(heap, block), policy == ReusePolicy::wait);
    const std::uint64_t before = waits();
    void* const next = allocate(heap, 4_MiB, a_);
    write(a_, next, 4_MiB);
    if (policy == ReusePolicy::wait) {
      EXPECT_EQ(next, block);
      EXPECT_EQ(waits(), before + 1);
    }
    EXPECT_THAT(device_.races(), IsEmpty());
    EXPECT_THAT(heap.validate(), IsEmpty());
    device_.finish();
  }
}

TEST_F(BlocksAtHand, FencesOfRecordStreamAreTakenBeforeABlockIsKept) {
  DeviceHeap heap(device_);
  void* const block = allocate(heap, 4_KiB, a_);
  write(a_, block, 4_KiB);
  ASSERT_TRUE(heap.record_stream(block, b_).ok());
  write_after(b_, a_, block, 4_KiB, 5_ms);
  free(heap, block);
  ASSERT_TRUE(is_cached(heap, block));
  EXPECT_EQ(allocate(heap, 4_KiB, a_), block);
  write(a_, block, 4_KiB);
  EXPECT_EQ(heap.statistics().stream_waits, 1u);
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_F(BlocksAtHand, AWaitThatFailsLeavesTheBlockAtHandWithItsFences) {
  DeviceHeap heap(device_);
  void* const keep = allocate(heap, 1_KiB, a_);
  void* const block = allocate(heap, 4_KiB, a_);
  use_elsewhere(heap, block, 4_KiB, a_, b_);
  free(heap, block);
  const Statistics before = heap.statistics();
  device_.fail(DeviceCall::wait, 1);
  const Result<void*> refused = heap.allocate(4_KiB, a_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::device);
  EXPECT_EQ(heap.statistics(), before);
  EXPECT_TRUE(is_cached(heap, block));
  EXPECT_THAT(heap.validate(), IsEmpty());
  EXPECT_EQ(allocate(heap, 4_KiB, a_), block);
  write(a_, block, 4_KiB);
  EXPECT_EQ(heap.statistics().stream_waits, 1u);
  EXPECT_THAT(device_.races(), IsEmpty());
  free(heap, keep);
}

// Else the heap would seem to hold memory for ever: a program that starts anew is not recognised.
TEST_F(BlocksAtHand, AWaitThatFailsLeavesNothingNotedAsHeld) {
  for (const Bytes size : {4_MiB, 4_KiB}) {
    DeviceHeap heap(device_, {.reuse = ReusePolicy::wait});
    void* const block = allocate(heap, size, a_);
    StreamHeap& blocks = stream_heap(heap, 0);
    const Bytes held = TestAccess::noted_as_held(blocks);
    EXPECT_EQ(held, std::max(size, Slab::kSize));
    use_elsewhere(heap, block, size, a_, b_);
    free(heap, block);
    ASSERT_TRUE(is_cached(heap, block));
    EXPECT_EQ(TestAccess::noted_as_held(blocks), 0_B);
    device_.fail(DeviceCall::wait, 1);
    EXPECT_FALSE(heap.allocate(size, a_).ok());
    EXPECT_EQ(device_.forget_faults(), 0u);
    EXPECT_EQ(TestAccess::noted_as_held(blocks), 0_B);
    EXPECT_EQ(allocate(heap, size, a_), block);
    EXPECT_EQ(TestAccess::noted_as_held(blocks), held);
    if (size < Slab::kSize) {  // beside a live block the slab is held in any case
      void* const beside = allocate(heap, size, a_);
      use_elsewhere(heap, block, size, a_, b_);
      free(heap, block);
      device_.fail(DeviceCall::wait, 1);
      EXPECT_FALSE(heap.allocate(size, a_).ok());
      EXPECT_EQ(TestAccess::noted_as_held(blocks), held);
      free(heap, beside);
    }
    EXPECT_THAT(heap.validate(), IsEmpty());
    device_.finish();
  }
}

// Bytes of a slab that two streams used, and a block that is cut anew of them.
TEST_F(BlocksAtHand, AWaitForFreeBytesThatFailsLeavesThemFreeWithTheirFences) {
  DeviceHeap heap(device_);
  void* const keep = allocate(heap, 1_KiB, a_);
  void* const first = allocate(heap, 4_KiB, a_);
  void* const second = allocate(heap, 4_KiB, a_);
  for (void* const block : {first, second}) use_elsewhere(heap, block, 4_KiB, a_, b_);
  for (void* const block : {first, second}) free(heap, block);
  const Statistics before = heap.statistics();
  device_.fail(DeviceCall::wait, 1);
  const Result<void*> refused = heap.allocate(8_KiB, a_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::device);
  EXPECT_EQ(heap.statistics(), before);
  EXPECT_THAT(heap.validate(), IsEmpty());
  const std::uint64_t made = waits();
  EXPECT_EQ(allocate(heap, 8_KiB, a_), first);
  write(a_, first, 8_KiB);
  EXPECT_EQ(waits(), made + 1);
  free(heap, first);
  EXPECT_EQ(allocate(heap, 6_KiB, a_), first);
  write(a_, first, 6_KiB);
  EXPECT_EQ(waits(), made + 1) << "one wait is for all that was done until then";
  EXPECT_THAT(device_.races(), IsEmpty());
  free(heap, keep);
}

TEST_F(BlocksAtHand, FencesGoBackWithTheBlock) {
  DeviceHeap heap(device_, {.limit = 8_MiB, .reuse = ReusePolicy::wait});
  void* const large = allocate(heap, 4_MiB, a_);
  void* const small = allocate(heap, 4_KiB, a_);
  use_elsewhere(heap, large, 4_MiB, a_, b_);
  use_elsewhere(heap, small, 4_KiB, a_, b_);
  free(heap, large);
  free(heap, small);
  ASSERT_EQ(kept(heap), 2u);
  void* const all = allocate(heap, 8_MiB, c_);
  write(c_, all, 8_MiB);
  EXPECT_EQ(kept(heap), 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_EQ(device_.physical_peak(), 8_MiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(BlocksAtHand, ALargeOneServesTheRequestThatItWasPlacedFor) {
  DeviceHeap heap(device_);
  void* const block = allocate(heap, 4_MiB, a_);
  const std::uint64_t leased = leased_in_all(heap);
  for (int i = 0; i < 3; ++i) {
    free(heap, block);
    ASSERT_TRUE(is_cached(heap, block));
    EXPECT_EQ(allocate(heap, 4_MiB, a_), block);
  }
  EXPECT_EQ(leased_in_all(heap), leased);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// The heap holds another block, and was asked for this size once more than when it was placed.
TEST_F(BlocksAtHand, ALargeOneServesNoOtherRequest) {
  DeviceHeap heap(device_);
  void* const other = allocate(heap, 6_MiB, a_);
  void* const block = allocate(heap, 4_MiB, a_);
  free(heap, block);
  ASSERT_TRUE(is_cached(heap, block));
  const std::uint64_t leased = leased_in_all(heap);
  (void)allocate(heap, 4_MiB, a_);
  EXPECT_EQ(leased_in_all(heap), leased + (4_MiB).count);  // it went to the pages first
  EXPECT_EQ(kept(heap), 0u);
  free(heap, other);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// So it is with the block of a slab in which nothing is live, for the slab.
TEST_F(BlocksAtHand, AnEmptySlabServesTheRequestThatItWasPlacedFor) {
  DeviceHeap heap(device_);
  void* const block = allocate(heap, 4_KiB, a_);
  const std::uint64_t leased = leased_in_all(heap);
  for (int i = 0; i < 3; ++i) {
    free(heap, block);
    EXPECT_EQ(allocate(heap, 4_KiB, a_), block);
  }
  EXPECT_EQ(leased_in_all(heap), leased);

  free(heap, block);
  void* const large = allocate(heap, 6_MiB, a_);
  EXPECT_EQ(kept(heap), 0u);
  void* const again = allocate(heap, 4_KiB, a_);
  free(heap, again);
  ASSERT_TRUE(is_cached(heap, again));
  const std::uint64_t before = leased_in_all(heap);
  (void)allocate(heap, 4_KiB, a_);
  EXPECT_GT(leased_in_all(heap), before);
  free(heap, large);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// Two device heaps run the same program of large blocks, and one has every freed block go back at
// once: what is kept changes nothing in what is held, by and large. (A cached block serves the
// next such request even where the page heap would give a place that it remembers from earlier:
// streams share those, and so do requests that are like each other in the last two sizes.)
class TwoHeaps {
 public:
  TwoHeaps(std::uint64_t seed, ReusePolicy policy)
      : random_(seed), heap_(device_, {.reuse = policy}), plain_(plain_device_, {.reuse = policy}) {
    for (int i = 0; i < 2; ++i) {
      streams_.push_back(device_.new_stream());
      plain_streams_.push_back(plain_device_.new_stream());
    }
  }
  // A few blocks come and go, last first more often than not; then one size again and again.
  void round() {
    const std::size_t stream = random_() % 4 == 0 ? 1 : 0;
    for (int i = 0; i < 30; ++i) {
      if (live_.size() > 20 || (!live_.empty() && random_() % 2 == 0)) {
        free(random_() % 3 == 0 ? random_() % live_.size() : live_.size() - 1);
      } else {
        allocate(some_size(), stream);
      }
    }
    const Bytes size = some_size();
    for (int i = 0; i < 45; ++i) {
      allocate(size, stream);
      free(live_.size() - 1);
    }
  }
  std::uint64_t from_cache() const { return from_cache_; }
  Bytes held() const { return device_.physical_peak(); }
  Bytes held_without() const { return plain_device_.physical_peak(); }
  DeviceHeap& heap() { return heap_; }

 private:
  Bytes some_size() { return 1_MiB + 700_KiB * (random_() % 6); }
  void allocate(Bytes size, std::size_t stream) {
    const std::uint64_t asked = TestAccess::tables(heap_).requests;
    const Result<void*> block = heap_.allocate(size, streams_[stream]);
    const Result<void*> plain = plain_.allocate(size, plain_streams_[stream]);
    ASSERT_TRUE(block.ok() && plain.ok());
    from_cache_ += TestAccess::tables(heap_).requests == asked;
    live_.emplace_back(*block, *plain);
  }
  void free(std::size_t which) {
    std::swap(live_[which], live_.back());
    ASSERT_TRUE(heap_.deallocate(live_.back().first).ok());
    ASSERT_TRUE(plain_.deallocate(live_.back().second).ok());
    (void)plain_.snapshot();
    live_.pop_back();
  }

  std::mt19937_64 random_;
  SimDevice device_, plain_device_;
  DeviceHeap heap_, plain_;
  std::vector<Stream> streams_, plain_streams_;
  std::vector<std::pair<void*, void*>> live_;  // in both
  std::uint64_t from_cache_ = 0;
};

TEST_F(BlocksAtHand, CostNoMemory) {
  for (const ReusePolicy policy : {ReusePolicy::wait, ReusePolicy::balanced}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + ", seed " +
                   std::to_string(seed));
      TwoHeaps heaps(seed, policy);
      for (int round = 0; round < 25 && !HasFatalFailure(); ++round) heaps.round();
      EXPECT_GT(heaps.from_cache(), 100u);
      EXPECT_LE(heaps.held(), heaps.held_without() + heaps.held_without() / 16);
      EXPECT_THAT(heaps.heap().validate(), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace weir
