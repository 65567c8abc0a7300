// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: memory that a program hands to another stream, and frees at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "tests/unit/core_heap_fixture.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

// Eight buffers, one after the other, each used by another stream that is a while behind.
class HeapUsedElsewhere : public CoreHeap {
 protected:
  struct Step {
    Bytes held;               // beyond what was there before
    Nanoseconds stood_still;  // of the stream that allocates
  };
  Step step(DeviceHeap& heap, Bytes weights, Bytes bytes = 64_MiB) {
    const Nanoseconds before = device_.stream_waited(a_);
    for (int i = 0; i < 8; ++i) {
      void* const buffer = allocate(heap, bytes, a_);
      write(a_, buffer, bytes, 900_us);
      write_after(b_, a_, buffer, bytes, 300_us);
      EXPECT_TRUE(heap.fence(buffer, b_).ok());
      free(heap, buffer);
    }
    return {Bytes{heap.statistics().reserved_bytes.current} - weights,
            device_.stream_waited(a_) - before};
  }
};

TEST_F(HeapUsedElsewhere, AndWaitHoldsOneAndStandsStill) {
  DeviceHeap heap(device_, {.reuse = ReusePolicy::wait});
  void* const weights = allocate(heap, 2_GiB, c_);
  const Step step = this->step(heap, 2_GiB);
  EXPECT_EQ(step.held, 64_MiB);
  EXPECT_GT(step.stood_still, 2_ms);
  free(heap, weights);
}

TEST_F(HeapUsedElsewhere, AndBalancedStaysWithinTheLimit) {
  DeviceHeap heap(device_, {.limit = 2_GiB + 64_MiB, .reuse = ReusePolicy::balanced});
  void* const weights = allocate(heap, 2_GiB, c_);
  EXPECT_EQ(step(heap, 2_GiB).held, 64_MiB);
  free(heap, weights);
}

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
