// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: sizes at the edges, limits of bytes and of mappings, and trim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "tests/unit/core_heap_fixture.h"

namespace weir {
namespace {

using test::CoreHeap;
using testing::HasSubstr;
using testing::IsEmpty;

class HeapSizes : public CoreHeap {};

TEST_F(HeapSizes, MoreThanTheDeviceHasIsRefusedAndTakesNothing) {
  DeviceHeap heap(device_);
  void* const kept = allocate(heap, 4_MiB, a_);
  const Bytes held = device_.physical_bytes();
  for (const Bytes size : {142_GiB, 2_TiB, 1024_TiB, 1024_TiB + 1_B,
                           Bytes{std::numeric_limits<std::uint64_t>::max()}}) {
    const Result<void*> refused = heap.allocate(size, a_);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
  }
  EXPECT_EQ(device_.physical_bytes(), held);
  EXPECT_EQ(device_.host_waits(), 0u);
  EXPECT_EQ(heap.statistics().out_of_memory, 5u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, kept);
}

class HeapTrim : public CoreHeap {};

TEST_F(HeapTrim, GivesBackIdlePagesWhoseWorkIsDoneAndWaitsForNone) {
  DeviceHeap heap(device_);
  void* const running = allocate(heap, 32_MiB, a_);
  void* const done = allocate(heap, 16_MiB, b_);
  void* const live = allocate(heap, 8_MiB, b_);
  write(a_, running, 32_MiB, 10_ms);
  free(heap, running);
  free(heap, done);
  EXPECT_EQ(*heap.trim(), 16_MiB);
  EXPECT_EQ(device_.physical_bytes(), 40_MiB);
  device_.advance(20_ms);
  EXPECT_EQ(*heap.trim(), 32_MiB);
  EXPECT_EQ(device_.physical_bytes(), 8_MiB);
  EXPECT_EQ(*heap.trim(), 0_B);
  EXPECT_EQ(heap.statistics().trimmed_bytes, (48_MiB).count);
  EXPECT_EQ(device_.host_waits(), 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, live);
}

TEST_F(HeapTrim, KeepsWhatItIsToldToKeep) {
  DeviceHeap heap(device_);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocate(heap, 4_MiB, a_));  // a page each
  for (void* const block : blocks) free(heap, block);
  EXPECT_EQ(*heap.trim(64_MiB), 0_B);
  EXPECT_EQ(*heap.trim(18_MiB), 16_MiB);
  EXPECT_EQ(device_.physical_bytes(), 16_MiB);
  EXPECT_EQ(*heap.trim(16_MiB), 0_B);
  EXPECT_EQ(*heap.trim(0_B), 16_MiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(HeapTrim, GivesTheLargestPagesBackFirst) {
  DeviceHeap heap(device_);
  void* const small = allocate(heap, 2_MiB, a_);
  void* const large = allocate(heap, 4_MiB, a_);
  free(heap, small);
  free(heap, large);
  EXPECT_EQ(*heap.trim(4_MiB), 4_MiB);
  EXPECT_EQ(device_.physical_bytes(), 2_MiB);
}

class HeapMappings : public CoreHeap {};

TEST_F(HeapMappings, TooFewMappingsAreAnErrorAndNothingBreaks) {
  DeviceHeap heap(device_, {.most_mappings = 4});
  std::vector<void*> live;
  Result<void*> block = heap.allocate(8_MiB, a_);
  for (; block.ok() && live.size() < 10; block = heap.allocate(8_MiB, a_)) live.push_back(*block);
  ASSERT_FALSE(block.ok());
  EXPECT_EQ(block.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(block.error().message(), HasSubstr("most_mappings"));
  EXPECT_LE(device_.live().mappings, 4u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  for (void* const one : live) free(heap, one);
  EXPECT_NE(allocate(heap, 8_MiB, b_), nullptr);
}

class HeapTrims : public CoreHeap {
 protected:
  // Eight idle pages.
  void leave_idle(DeviceHeap& heap) {
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(allocate(heap, 4_MiB, a_));
    for (void* const block : blocks) free(heap, block);
    EXPECT_EQ(heap.snapshot().pages.size(), 8u);
  }
};

// Others go in its place, as far as there are any; and the refusal is said.
TEST_F(HeapTrims, APageThatTheDriverKeepsIsHeldAndOthersGo) {
  for (const DeviceCall call : {DeviceCall::unmap, DeviceCall::release}) {
    for (const std::uint64_t nth : {1, 2, 5, 8}) {
      DeviceHeap heap(device_);
      leave_idle(heap);
      device_.fail(call, nth);
      const Result<Bytes> gone = heap.trim(16_MiB);
      EXPECT_EQ(gone.ok(), nth > 4) << "four pages had to go";
      EXPECT_EQ(heap.statistics().reserved_bytes.current, (16_MiB).count);
      EXPECT_EQ(device_.physical_bytes(), 16_MiB);
      EXPECT_EQ(heap.statistics().trimmed_bytes, (16_MiB).count);
      EXPECT_THAT(heap.validate(), IsEmpty());
      for (std::uint64_t i = 1; i < 9; ++i) device_.fail(call, i);
      EXPECT_FALSE(heap.trim().ok());
      EXPECT_EQ(device_.physical_bytes(), 16_MiB) << "the driver keeps all";
      EXPECT_THAT(heap.validate(), IsEmpty());
      free(heap, allocate(heap, 16_MiB, b_));
      EXPECT_EQ(device_.physical_bytes(), 16_MiB);
      ASSERT_TRUE(heap.trim().ok() || heap.trim().ok());
      EXPECT_EQ(device_.physical_bytes(), 0_B);
    }
  }
}

}  // namespace
}  // namespace weir
