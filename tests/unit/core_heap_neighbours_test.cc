// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: memory that another stream has just freed, and will want again. (Which remembered
// place is taken beside it: bench/sharded/step_test.cc.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/core_heap_fixture.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

class HeapNeighbours : public CoreHeap {
 protected:
  // Stream b has a buffer for a while, and the host is far ahead of it.
  void use_buffer(DeviceHeap& heap, Bytes bytes) {
    void* const buffer = allocate(heap, bytes, b_);
    write(b_, buffer, bytes, 5_ms);
    free(heap, buffer);
  }
  // The waits that a request of stream a takes.
  std::uint64_t waits_for(DeviceHeap& heap, Bytes bytes, void*& block) {
    const std::uint64_t before = heap.statistics().stream_waits;
    block = allocate(heap, bytes, a_);
    write(a_, block, bytes);
    return heap.statistics().stream_waits - before;
  }
  // Stream a has had the other's page before, and knows a place there; b has it again.
  void take_turns(DeviceHeap& heap, Bytes bytes) {
    use_buffer(heap, bytes);
    void* block = nullptr;
    EXPECT_EQ(waits_for(heap, bytes, block), 1u);
    free(heap, block);
    use_buffer(heap, bytes);
  }
  void expect_sound(const DeviceHeap& heap) {
    EXPECT_THAT(device_.races(), IsEmpty());
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
};

TEST_F(HeapNeighbours, AreLeftTheirBuffersWhereThatCostsOneIn64) {
  DeviceHeap heap(device_, {.reuse = ReusePolicy::balanced});
  void* const weights = allocate(heap, 1_GiB, c_);
  take_turns(heap, 6_MiB);
  void* block = nullptr;
  EXPECT_EQ(heap.statistics().reserved_bytes.current, (1_GiB + 6_MiB).count);
  EXPECT_EQ(waits_for(heap, 4_MiB, block), 0u);
  EXPECT_EQ(heap.statistics().reserved_bytes.current, (1_GiB + 10_MiB).count);
  for (void* const each : {weights, block}) free(heap, each);
  expect_sound(heap);
}

// With less than nine tenths of the most ever in use.
TEST_F(HeapNeighbours, AreWaitedForWhereMuchIsFree) {
  DeviceHeap heap(device_, {.reuse = ReusePolicy::balanced});
  void* const weights = allocate(heap, 800_MiB, c_);
  void* const passing = allocate(heap, 224_MiB, c_);
  take_turns(heap, 6_MiB);
  void* block = nullptr;
  write(c_, passing, 224_MiB, 5_ms);
  free(heap, passing);
  EXPECT_EQ(waits_for(heap, 4_MiB, block), 1u);
  EXPECT_EQ(heap.statistics().reserved_bytes.peak, (1_GiB + 6_MiB).count);
  for (void* const each : {weights, block}) free(heap, each);
  expect_sound(heap);
}

TEST_F(HeapNeighbours, AreWaitedForWhereThatCostsMore) {
  DeviceHeap heap(device_, {.reuse = ReusePolicy::balanced});
  void* const weights = allocate(heap, 1_GiB, c_);
  take_turns(heap, 64_MiB);
  void* block = nullptr;
  EXPECT_EQ(waits_for(heap, 32_MiB, block), 1u);
  EXPECT_EQ(heap.statistics().reserved_bytes.peak, (1_GiB + 64_MiB).count);
  for (void* const each : {weights, block}) free(heap, each);
  expect_sound(heap);
}

}  // namespace
}  // namespace weir::test
