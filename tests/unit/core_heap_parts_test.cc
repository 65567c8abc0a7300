// SPDX-License-Identifier: Apache-2.0
// What those who share memory with others ask of a heap: the pages of a block, and access anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "weir/device_heap.h"
#include "weir/metered_device.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

class HeapParts : public testing::Test {
 protected:
  SimDevice sim_;
  MeteredDevice device_{sim_};
  const Stream stream_ = sim_.new_stream(), other_ = sim_.new_stream();
  DeviceHeap heap_{device_};
};

TEST_F(HeapParts, OfABlockAreItsBytesPageByPage) {
  for (const Bytes bytes : {1000_B, 256_KiB, 1_MiB, 37_MiB, 513_MiB}) {
    void* const block = heap_.allocate(bytes, stream_).value();
    const std::vector<PagePart> parts = heap_.parts(block);
    ASSERT_FALSE(parts.empty());
    Bytes sum;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_LE(parts[i].offset + parts[i].bytes, parts[i].page_bytes);
      if (i > 0) {
        EXPECT_EQ(parts[i].offset, 0_B);
      }
      if (i + 1 < parts.size()) {
        EXPECT_EQ(parts[i].offset + parts[i].bytes, parts[i].page_bytes);
      }
      sum += parts[i].bytes;
    }
    EXPECT_EQ(sum, heap_.find(block)->bytes);
    EXPECT_TRUE(heap_.deallocate(block).ok());
  }
}

// The slab that small blocks share may lie in a stitched row, and a block anywhere in the slab.
TEST_F(HeapParts, OfSmallBlocksInAStitchedRowAreWhatTheDeviceHasThere) {
  // On every other page of 4 MiB, free at either end: too little in one piece for a slab of 2 MiB.
  constexpr Bytes kEnd = 1200_KiB;
  heap_.set_limit(64_MiB);
  std::vector<void*> ends;
  for (int page = 0; page < 16; ++page) {
    for (const Bytes bytes : {kEnd, 4_MiB - kEnd * 2, kEnd}) {
      void* const block = heap_.allocate(bytes, stream_).value();
      if (page % 2 == 0 && bytes == kEnd) ends.push_back(block);
    }
  }
  for (void* const block : ends) ASSERT_TRUE(heap_.deallocate(block).ok());
  std::vector<void*> small;
  for (int i = 0; i < 60; ++i) {
    const Result<void*> block = heap_.allocate(10'000_B, stream_);
    ASSERT_TRUE(block.ok()) << block.error().message();
    small.push_back(*block);
    const std::vector<PagePart> parts = heap_.parts(small.back());
    const auto physical =
        sim_.translate(Address::of(small.back()), heap_.find(small.back())->bytes);
    ASSERT_EQ(parts.size(), physical.size()) << i;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      EXPECT_EQ(parts[k].handle, physical[k].handle);
      EXPECT_EQ(parts[k].offset, physical[k].offset);
      EXPECT_EQ(parts[k].bytes, physical[k].bytes);
    }
  }
  const Statistics now = heap_.statistics();
  EXPECT_GT(now.mappings.current, now.pages.current) << "else no row was stitched";
}

TEST_F(HeapParts, AreNoneOfWhatIsNoBlock) {
  char* const block = static_cast<char*>(heap_.allocate(4_MiB, stream_).value());
  EXPECT_THAT(heap_.parts(block + 512), testing::IsEmpty());
  EXPECT_THAT(heap_.parts(nullptr), testing::IsEmpty());
  EXPECT_THAT(heap_.parts(this), testing::IsEmpty());
  EXPECT_TRUE(heap_.deallocate(block).ok());
  EXPECT_THAT(heap_.parts(block), testing::IsEmpty());
}

TEST_F(HeapParts, AHeapOwnsItsAddressesAndNoOthers) {
  char* const block = static_cast<char*>(heap_.allocate(4_MiB, stream_).value());
  EXPECT_TRUE(heap_.owns(block));
  EXPECT_TRUE(heap_.owns(block + 4'000'000));
  EXPECT_FALSE(heap_.owns(nullptr));
  EXPECT_FALSE(heap_.owns(this));
  DeviceHeap another(device_);
  EXPECT_FALSE(another.owns(block));
  EXPECT_TRUE(heap_.deallocate(block).ok());
}

TEST_F(HeapParts, AccessIsAskedForAnewOfEveryMapping) {
  std::vector<void*> blocks;
  for (const Stream stream : {stream_, other_}) {
    for (const Bytes bytes : {1000_B, 5_MiB, 70_MiB}) {
      blocks.push_back(heap_.allocate(bytes, stream).value());
    }
  }
  const std::uint64_t mappings = heap_.statistics().mappings.current;
  device_.reset();
  EXPECT_TRUE(heap_.renew_access().ok());
  EXPECT_EQ(device_.calls(DeviceCall::set_access), mappings);
  for (const std::uint64_t nth : {std::uint64_t{1}, mappings}) {
    sim_.fail(DeviceCall::set_access, nth);
    EXPECT_FALSE(heap_.renew_access().ok());
  }
  for (void* const block : blocks) EXPECT_TRUE(heap_.deallocate(block).ok());
}

class HeapSnapshots : public test::CoreHeap {};

TEST_F(HeapSnapshots, OfADeviceThatDoesNotSayWhatItHasASnapshotSaysNothing) {
  device_.fail(DeviceCall::memory_info, 1);
  DeviceHeap heap(device_);
  EXPECT_EQ(heap.snapshot().device_bytes, 0_B);
  free(heap, allocate(heap, 3_MiB, a_));
}

}  // namespace
}  // namespace weir
