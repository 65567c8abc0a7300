// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: sizes at the edges, limits of bytes and of mappings, and trim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"

namespace weir {
namespace {

using test::CoreHeap;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

class HeapSizes : public CoreHeap {};

TEST_F(HeapSizes, EverySizeAroundTheBorderOfSmallBlocksIsServed) {
  DeviceHeap heap(device_);
  std::vector<void*> blocks;
  for (const Bytes border : {kGrain, 256_KiB, 2_MiB, 8_MiB, 80_MiB}) {
    for (const Bytes size : {border - 1_B, border, border + 1_B}) {
      void* const block = allocate(heap, size, a_);
      EXPECT_EQ(heap.find(block)->bytes, round_up(size, kGrain));
      write(a_, block, size);
      blocks.push_back(block);
    }
  }
  EXPECT_THAT(heap.validate(), IsEmpty());
  for (void* const block : blocks) free(heap, block);
  EXPECT_EQ(heap.statistics().live_bytes.current, 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  (void)heap.snapshot();  // gives back what is cached
  EXPECT_EQ(heap.statistics().leased_bytes.current, 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(HeapSizes, MoreThanTheDeviceHasIsRefusedAndTakesNothing) {
  DeviceHeap heap(device_);
  void* const kept = allocate(heap, 4_MiB, a_);
  const Bytes held = device_.physical_bytes();
  for (const Bytes size : {142_GiB, 2_TiB, 1024_TiB, 1024_TiB + 1_B,
                           Bytes{std::numeric_limits<std::uint64_t>::max()}}) {
    const Result<void*> refused = heap.allocate(size, a_);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
    EXPECT_THAT(refused.error().message(),
                EndsWith(". The device has less than that in all: ask for less."));
  }
  EXPECT_EQ(device_.physical_bytes(), held);
  EXPECT_EQ(device_.host_waits(), 0u);
  EXPECT_EQ(heap.statistics().out_of_memory, 5u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, kept);
}

TEST_F(HeapSizes, TheWholeDeviceIsServed) {
  DeviceHeap heap(device_);
  void* const all = allocate(heap, 141_GiB, a_);
  EXPECT_EQ(device_.physical_bytes(), 141_GiB);
  EXPECT_FALSE(heap.allocate(1_B, a_).ok());
  free(heap, all);
  EXPECT_NE(allocate(heap, 141_GiB, b_), nullptr);
  EXPECT_EQ(device_.physical_peak(), 141_GiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

class HeapLimits : public CoreHeap {};

TEST_F(HeapLimits, WhatIsHeldAboveALoweredLimitGoesAsItBecomesIdle) {
  DeviceHeap heap(device_);
  void* const first = allocate(heap, 64_MiB, a_);
  void* const second = allocate(heap, 64_MiB, a_);
  void* const third = allocate(heap, 64_MiB, b_);
  free(heap, first);
  heap.set_limit(96_MiB);  // 64 MiB are idle: they go at once
  EXPECT_EQ(device_.physical_bytes(), 128_MiB);
  EXPECT_FALSE(heap.allocate(2_MiB, a_).ok());
  free(heap, second);
  EXPECT_LE(device_.physical_bytes(), 96_MiB);
  EXPECT_NE(heap.find(third), std::nullopt);
  EXPECT_EQ(device_.host_waits(), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());

  heap.set_limit(0_B);
  EXPECT_NE(allocate(heap, 256_MiB, a_), nullptr);
  free(heap, third);
}

TEST_F(HeapLimits, ALoweredLimitTakesNothingFromRunningWork) {
  DeviceHeap heap(device_);
  void* const block = allocate(heap, 64_MiB, a_);
  write(a_, block, 64_MiB, 10_ms);
  free(heap, block);
  heap.set_limit(32_MiB);
  EXPECT_EQ(device_.physical_bytes(), 64_MiB);
  device_.advance(20_ms);
  free(heap, allocate(heap, 512_KiB, a_));
  EXPECT_LE(device_.physical_bytes(), 32_MiB);
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_THAT(heap.validate(), IsEmpty());
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

class HeapMappings : public CoreHeap {
 protected:
  // Blocks of many sizes, in little memory, so that pages get aliases. Returns how many were
  // refused.
  std::uint64_t run(DeviceHeap& heap, std::uint64_t most) {
    std::mt19937_64 random(3);
    const std::array streams{a_, b_};
    std::vector<std::pair<void*, Bytes>> live;
    Bytes in_use;
    std::uint64_t refused = 0;
    for (int i = 0; i < 3000; ++i) {
      const Bytes size = 512_KiB * (1 + random() % 14);
      if (in_use + size > 40_MiB) {
        std::swap(live[random() % live.size()], live.back());
        in_use -= live.back().second;
        free(heap, live.back().first);
        live.pop_back();
        continue;
      }
      const Stream stream = streams[random() % 2];
      const Result<void*> block = heap.allocate(size, stream);
      EXPECT_LE(device_.live().mappings, most);
      if (!block.ok()) {
        ++refused;
        continue;
      }
      write(stream, *block, size, 10_us);
      live.emplace_back(*block, size);
      in_use += size;
      device_.advance(20_us);
    }
    for (const auto& [block, size] : live) free(heap, block);
    EXPECT_THAT(device_.races(), IsEmpty());
    EXPECT_THAT(heap.validate(), IsEmpty());
    return refused;
  }
};

TEST_F(HeapMappings, FewMappingsAreMadeToDoByGivingUpAliases) {
  DeviceHeap heap(device_, {.limit = 80_MiB, .most_mappings = 128});
  EXPECT_EQ(run(heap, 128), 0u);
  EXPECT_GT(device_.calls(DeviceCall::unmap), 0u);
}

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

// No memory is short: what the driver said is said, at once.
TEST_F(HeapMappings, ARowThatTheDriverDoesNotMapIsItsErrorAndNothingIsLost) {
  for (const Bytes created : {0_B, 4_MiB}) {  // beside 12 MiB that are free
    DeviceHeap heap(device_, {.limit = 24_MiB + created});
    std::vector<void*> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(allocate(heap, 4_MiB, a_));
    for (const std::size_t i : {0, 2, 4}) free(heap, blocks[i]);
    const std::uint64_t maps = device_.calls(DeviceCall::map);
    device_.fail(DeviceCall::map, 1);
    const Result<void*> refused = heap.allocate(12_MiB + created, a_);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::device);
    EXPECT_EQ(device_.calls(DeviceCall::map), maps + 1);
    EXPECT_THAT(heap.validate(), IsEmpty());
    free(heap, allocate(heap, 12_MiB + created, a_));
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
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
