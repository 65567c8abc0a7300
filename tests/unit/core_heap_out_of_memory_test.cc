// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: what happens when memory runs out, and where others take of it too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

using test::CoreHeap;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class HeapOutOfMemory : public CoreHeap {};

TEST_F(HeapOutOfMemory, TheMessageSaysWhatHoldsTheMemory) {
  DeviceHeap heap(device_, {.limit = 64_MiB});
  void* const large = allocate(heap, 40_MiB, a_);
  void* const idle = allocate(heap, 8_MiB, b_);
  free(heap, idle);
  const Result<void*> refused = heap.allocate(100_MiB, c_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("100.00 MiB asked for on stream " + std::to_string(c_.id)),
                    HasSubstr("held 48.00 MiB of a limit of 64.00 MiB"),
                    HasSubstr("in use 40.00 MiB, idle 8.00 MiB"),
                    HasSubstr("stream " + std::to_string(a_.id) + " holds 40.00 MiB in 1 blocks"),
                    HasSubstr("141.00 GiB")));
  EXPECT_EQ(heap.statistics().out_of_memory, 1u);
  free(heap, large);
}

TEST_F(HeapOutOfMemory, ACallbackFreesAndTheRequestIsTriedOnceMore) {
  DeviceHeap heap(device_, {.limit = 64_MiB});
  void* cache = allocate(heap, 48_MiB, a_);
  std::vector<Bytes> asked;
  heap.on_shortage(Shortage::out_of_memory, [&](Bytes requested) {
    asked.push_back(requested);
    EXPECT_THAT(heap.validate(), IsEmpty());  // no lock is held
    free(heap, std::exchange(cache, nullptr));
  });
  EXPECT_NE(allocate(heap, 32_MiB, b_), nullptr);
  EXPECT_EQ(asked, std::vector<Bytes>{32_MiB});
  EXPECT_EQ(heap.statistics().out_of_memory, 0u);
  EXPECT_LE(device_.physical_peak(), 64_MiB);
}

TEST_F(HeapOutOfMemory, CallbacksThatFreeNothingAreCalledOnceEach) {
  DeviceHeap heap(device_, {.limit = 16_MiB});
  int first = 0, second = 0, misses = 0;
  heap.on_shortage(Shortage::out_of_memory, [&](Bytes) { ++first; });
  heap.on_shortage(Shortage::out_of_memory, [&](Bytes) { ++second; });
  heap.on_shortage(Shortage::miss, [&](Bytes) { ++misses; });
  EXPECT_FALSE(heap.allocate(32_MiB, a_).ok());
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(misses, 1);
  EXPECT_EQ(heap.statistics().out_of_memory, 1u);
}

// Callbacks at a miss come before new memory.
TEST_F(HeapOutOfMemory, WhatIsFreedAtAMissServesTheRequest) {
  for (const Bytes size : {1_KiB, 32_MiB}) {
    DeviceHeap heap(device_);
    std::vector<void*> cache;
    for (int i = 0; i < 3; ++i) cache.push_back(allocate(heap, 32_MiB, a_));
    int misses = 0;
    heap.on_shortage(Shortage::miss, [&](Bytes) {
      ++misses;
      EXPECT_THAT(heap.validate(), IsEmpty());  // no lock is held
      if (cache.empty()) return;
      free(heap, cache.back());
      cache.pop_back();
    });
    const Bytes before = device_.physical_bytes();
    for (int i = 0; i < 2; ++i) EXPECT_NE(allocate(heap, 32_MiB, a_), nullptr);
    EXPECT_EQ(misses, 2);
    EXPECT_NE(heap.allocate(size, b_).value(), nullptr);  // another stream's first
    EXPECT_EQ(misses, 3);
    EXPECT_EQ(device_.physical_bytes(), before);
  }
}

TEST_F(HeapOutOfMemory, BlocksOfSlabsInSmallPiecesAreRestored) {
  DeviceHeap heap(device_, {.limit = 24_MiB});
  GraphPool pool(heap);
  std::vector<void*> large, small;
  while (const Result<void*> block = pool.allocate(768_KiB, a_)) large.push_back(*block);
  for (std::size_t i = 0; i < large.size(); i += 2) free(heap, large[i]);
  for (int i = 0; i < 100; ++i) small.push_back(pool.allocate(10'000_B, a_).value());
  const std::vector<PlacedBlock> state = pool.blocks();
  EXPECT_TRUE(std::any_of(state.begin(), state.end(), [](const PlacedBlock& block) {
    return block.bytes < 256_KiB && block.run_bytes == 512_KiB;
  }));
  for (void* const block : small) free(heap, block);
  ASSERT_TRUE(pool.restore(state).ok());
  EXPECT_EQ(pool.blocks().size(), state.size());
  EXPECT_THAT(heap.validate(), IsEmpty());
  std::vector<PlacedBlock> wrong = state;
  for (PlacedBlock& block : wrong) block.run_bytes = 1_MiB;
  for (void* const block : small) free(heap, block);
  EXPECT_FALSE(pool.restore(wrong).ok());
  EXPECT_THAT(heap.validate(), IsEmpty());
}

}  // namespace
}  // namespace weir
