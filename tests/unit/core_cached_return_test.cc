// SPDX-License-Identifier: Apache-2.0
// The blocks that a stream heap caches: who has them given back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/unit/core_cached_fixture.h"

namespace weir {
namespace {

using test::BlocksAtHand;
using testing::IsEmpty;

TEST_F(BlocksAtHand, AnotherStreamsRequestGetsTheirMemory) {
  DeviceHeap heap(device_, {.limit = 64_MiB});
  void* const first = allocate(heap, 32_MiB, a_);
  void* const second = allocate(heap, 32_MiB, b_);
  write(a_, first, 32_MiB, 5_ms);
  write(b_, second, 32_MiB, 5_ms);
  free(heap, first);
  free(heap, second);
  ASSERT_EQ(kept(heap, 0), 1u);
  void* const all = allocate(heap, 64_MiB, c_);
  ASSERT_NE(all, nullptr);
  write(c_, all, 64_MiB);
  EXPECT_EQ(kept(heap, 0) + kept(heap, 1), 0u);
  EXPECT_EQ(heap.statistics().out_of_memory, 0u);
  EXPECT_EQ(device_.physical_peak(), 64_MiB);
  EXPECT_EQ(device_.host_waits(), 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_F(BlocksAtHand, TheHeapsOwnLargerRequestGetsTheirMemory) {
  DeviceHeap heap(device_, {.limit = 64_MiB});
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(heap, 16_MiB, a_));
  for (void* const block : blocks) free(heap, block);
  ASSERT_EQ(kept(heap), 4u);
  EXPECT_NE(allocate(heap, 64_MiB, a_), nullptr);
  EXPECT_EQ(device_.physical_peak(), 64_MiB);
}

TEST_F(BlocksAtHand, TrimGivesTheirMemoryToTheDriver) {
  DeviceHeap heap(device_);
  free(heap, allocate(heap, 32_MiB, a_));
  free(heap, allocate(heap, 4_KiB, b_));
  ASSERT_EQ(kept(heap, 1), 1u);
  device_.finish();
  const Result<Bytes> trimmed = heap.trim();
  ASSERT_TRUE(trimmed.ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  EXPECT_EQ(kept(heap, 0) + kept(heap, 1), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(BlocksAtHand, ALowerLimitGivesTheirMemoryToTheDriver) {
  DeviceHeap heap(device_);
  void* const stays = allocate(heap, 16_MiB, a_);
  void* const goes = allocate(heap, 32_MiB, a_);
  free(heap, goes);
  ASSERT_EQ(kept(heap), 1u);
  device_.finish();
  heap.set_limit(40_MiB);
  EXPECT_LE(device_.physical_bytes(), 40_MiB);
  EXPECT_EQ(kept(heap), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, stays);
}

TEST_F(BlocksAtHand, ALimitThatIsKeptToLeavesThem) {
  DeviceHeap heap(device_);
  free(heap, allocate(heap, 32_MiB, a_));
  heap.set_limit(40_MiB);
  EXPECT_EQ(kept(heap), 1u);
}

TEST_F(BlocksAtHand, OverTheLimitNoneIsKept) {
  DeviceHeap heap(device_);
  void* const large = allocate(heap, 32_MiB, a_);
  void* const small = allocate(heap, 4_KiB, a_);
  heap.set_limit(16_MiB);
  free(heap, small);
  EXPECT_EQ(kept(heap), 0u);
  free(heap, large);
  EXPECT_EQ(kept(heap), 0u);
  EXPECT_LE(device_.physical_bytes(), 16_MiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(BlocksAtHand, RetireGivesThemBackAndKeepsNoMore) {
  DeviceHeap heap(device_);
  void* const first = allocate(heap, 32_MiB, a_);
  void* const second = allocate(heap, 4_KiB, a_);
  void* const third = allocate(heap, 4_MiB, a_);
  free(heap, first);
  ASSERT_EQ(kept(heap), 1u);
  ASSERT_TRUE(heap.retire(a_).ok());
  EXPECT_EQ(kept(heap), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, second);
  free(heap, third);
  EXPECT_EQ(kept(heap), 0u);
  EXPECT_EQ(heap.statistics().leased_bytes.current, 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// As a thread that is at work on the heap.
void hold(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { heap.lock(); }
void let_go(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { heap.unlock(); }

// A heap whose lock is taken is at work on just these blocks.
TEST_F(BlocksAtHand, AHeapThatIsAtWorkIsLeftAloneAndAskedTheNextTime) {
  DeviceHeap heap(device_);
  // Each has a slab, so that what follows needs no pages.
  for (const Stream stream : {a_, b_, c_}) (void)allocate(heap, 4_KiB, stream);
  for (const Stream stream : {a_, c_}) free(heap, allocate(heap, 5_KiB, stream));
  ASSERT_EQ(kept(heap, 0), 1u);
  ASSERT_EQ(kept(heap, 2), 1u);

  StreamHeap& busy = stream_heap(heap, 0);
  hold(busy);
  (void)allocate(heap, 20_MiB, b_);
  EXPECT_EQ(kept(heap, 0), 1u);
  EXPECT_TRUE(TestAccess::listed(busy));
  EXPECT_EQ(kept(heap, 2), 0u);
  EXPECT_FALSE(TestAccess::listed(stream_heap(heap, 2)));
  let_go(busy);

  (void)allocate(heap, 21_MiB, b_);
  EXPECT_EQ(kept(heap, 0), 0u);
  EXPECT_FALSE(TestAccess::listed(busy));
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// Threads that took each other's cached blocks would all miss for ever.
TEST_F(BlocksAtHand, AHeapThatAnotherThreadIsBusyWithKeepsThemUntilItRests) {
  DeviceHeap heap(device_);
  free(heap, allocate(heap, 32_MiB, c_));
  (void)allocate(heap, 4_MiB, b_);  // c's memory is the pages' again
  std::thread([&] { free(heap, allocate(heap, 8_MiB, a_)); }).join();
  ASSERT_EQ(kept(heap, 2), 1u);
  (void)allocate(heap, 4_MiB, b_);  // other free memory will do
  EXPECT_EQ(kept(heap, 2), 1u);
  EXPECT_TRUE(TestAccess::listed(stream_heap(heap, 2)));
  std::thread([&] { free(heap, allocate(heap, 8_MiB, a_)); }).join();
  (void)allocate(heap, 4_MiB, b_);  // a served something meanwhile
  EXPECT_EQ(kept(heap, 2), 1u);
  (void)allocate(heap, 4_MiB, b_);  // and now nothing
  EXPECT_EQ(kept(heap, 2), 0u);
  EXPECT_EQ(device_.physical_peak(), 32_MiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(BlocksAtHand, BeforeNewMemoryIsTakenEveryHeapGivesBackItsOwn) {
  DeviceHeap heap(device_);
  std::thread([&] { free(heap, allocate(heap, 32_MiB, a_)); }).join();
  ASSERT_EQ(kept(heap, 0), 1u);
  (void)allocate(heap, 32_MiB, b_);
  EXPECT_EQ(kept(heap, 0), 0u);
  EXPECT_EQ(device_.physical_peak(), 32_MiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// However often it keeps blocks and uses them again.
TEST_F(BlocksAtHand, AHeapIsListedOnce) {
  DeviceHeap heap(device_);
  for (const Stream stream : {a_, b_}) (void)allocate(heap, 4_KiB, stream);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) free(heap, allocate(heap, 5_KiB, a_));
    EXPECT_TRUE(TestAccess::listed(stream_heap(heap, 0)));
    CachingHeaps<StreamHeap>& caching_heaps = TestAccess::caching_heaps(heap);
    StreamHeap* const first = caching_heaps.take();
    ASSERT_EQ(first, &stream_heap(heap, 0));
    EXPECT_EQ(TestAccess::caching_link(*first).next, nullptr);
    caching_heaps.push(*first, TestAccess::caching_link(*first));
    free(heap, allocate(heap, 9_MiB, b_));  // takes the list, and has b listed
    EXPECT_FALSE(TestAccess::listed(stream_heap(heap, 0)));
    free(heap, allocate(heap, 9_MiB, a_));
    EXPECT_FALSE(TestAccess::listed(stream_heap(heap, 1)));
    (void)heap.snapshot();
    (void)allocate(heap, 10_MiB, b_);  // a is listed still, and has nothing
    EXPECT_FALSE(TestAccess::listed(stream_heap(heap, 0)));
  }
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(BlocksAtHand, WhoRunsOutOfMemoryWaitsForAHeapThatIsAtWork) {
  DeviceHeap heap(device_, {.limit = 64_MiB});
  free(heap, allocate(heap, 64_MiB, a_));
  ASSERT_EQ(kept(heap), 1u);
  StreamHeap& busy = stream_heap(heap, 0);
  hold(busy);
  std::thread at_work([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    let_go(busy);
  });
  const Result<void*> block = heap.allocate(64_MiB, b_);
  at_work.join();
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(heap.statistics().out_of_memory, 0u);
  EXPECT_EQ(device_.physical_peak(), 64_MiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

}  // namespace
}  // namespace weir
