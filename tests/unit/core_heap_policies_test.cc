// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: how the reuse policies differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace weir
