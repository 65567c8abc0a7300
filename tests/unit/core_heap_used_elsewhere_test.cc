// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: memory that a program hands to another stream, and frees at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/unit/core_heap_fixture.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

class HeapUsedElsewhere : public CoreHeap {};

// The smallest places are weighed; what is free at the end of the row may be larger than all of
// them.
TEST_F(HeapUsedElsewhere, AndTheFreeEndOfTheRowIsTakenWhereAllThatIsWeighedIsUsed) {
  DeviceHeap heap(device_);
  void* const weights = allocate(heap, 1_GiB, c_);
  std::vector<void*> used, between;
  for (int i = 0; i < 30; ++i) {
    used.push_back(allocate(heap, 4_MiB, a_));
    between.push_back(allocate(heap, 2_MiB, a_));
  }
  free(heap, allocate(heap, 64_MiB, a_));
  for (void* const block : used) {
    write(a_, block, 4_MiB, 1_us);
    write_after(b_, a_, block, 4_MiB, 50_ms);
    ASSERT_TRUE(heap.fence(block, b_).ok());
    free(heap, block);
  }
  const std::uint64_t held = heap.statistics().reserved_bytes.current;
  void* const last = allocate(heap, 4_MiB, a_);
  EXPECT_EQ(heap.statistics().stream_waits, 0u);
  EXPECT_EQ(heap.statistics().reserved_bytes.current, held);
  device_.finish();
  free(heap, last);
  for (void* const block : between) free(heap, block);
  free(heap, weights);
}

// What a program needed before it gave its memory back says nothing of what it needs now.
TEST_F(HeapUsedElsewhere, AndMemoryGivenBackIsNoReasonToGrowAgain) {
  for (const ReusePolicy policy : {ReusePolicy::wait, ReusePolicy::balanced}) {
    DeviceHeap heap(device_, {.reuse = policy});
    free(heap, allocate(heap, 100_GiB, c_));
    EXPECT_EQ(*heap.trim(), 100_GiB);
    void* const weights = allocate(heap, 2_GiB, c_);
    std::mt19937_64 random(7);
    for (int i = 0; i < 500;
         ++i) {  // the stream that allocates knows nothing of the other's progress
      const Bytes bytes = 1_MiB * (1 + random() % 63);
      void* const buffer = allocate(heap, bytes, a_);
      write(a_, buffer, bytes);
      write_after(b_, a_, buffer, bytes, 300_us);
      ASSERT_TRUE(heap.fence(buffer, b_).ok());
      free(heap, buffer);
    }
    EXPECT_LE(heap.statistics().reserved_bytes.current, (2_GiB + 2_GiB / 8 + 64_MiB).count);
    EXPECT_THAT(heap.validate(), IsEmpty());
    free(heap, weights);
    device_.finish();
  }
  EXPECT_THAT(device_.races(), IsEmpty());
}

}  // namespace
}  // namespace weir::test
