// SPDX-License-Identifier: Apache-2.0
// Plain memory (MemoryKind::plain): segments that the device gives, which have one address each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/forwarding_device.h"
#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"

namespace weir::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Bytes kShared = 32_MiB;  // a segment that small requests share

class PlainMemory : public CoreHeap {
 protected:
  PlainMemory() : CoreHeap({.memory = 1_GiB}) {}
  void TearDown() override {
    EXPECT_THAT(heap_.validate(), IsEmpty());
    EXPECT_THAT(device_.races(), IsEmpty());
  }
  std::uint64_t segments() const {
    return device_.calls(DeviceCall::allocate_segment) - device_.calls(DeviceCall::free_segment);
  }
  Bytes held() const { return Bytes{heap_.statistics().reserved_bytes.current}; }

  DeviceHeap heap_{device_, {.memory = MemoryKind::plain}};
  const Stream one_ = device_.new_stream(), other_ = device_.new_stream();
};

TEST_F(PlainMemory, IsAllocatedAndNeverMapped) {
  std::vector<void*> blocks;
  for (const Bytes size : {512_B, 300_KiB, 3_MiB, 20_MiB, 70_MiB}) {
    blocks.push_back(allocate(heap_, size, one_));
    write(one_, blocks.back(), size);
  }
  EXPECT_EQ(device_.calls(DeviceCall::reserve), 0u);
  EXPECT_EQ(device_.calls(DeviceCall::create), 0u);
  EXPECT_EQ(device_.calls(DeviceCall::map), 0u);
  EXPECT_EQ(segments(), 2u);  // one that the smaller ones share, and one for the largest
  EXPECT_EQ(held(), kShared + 70_MiB);
  EXPECT_EQ(device_.physical_bytes(), held());
  for (void* const block : blocks) {
    EXPECT_TRUE(heap_.owns(block));
    EXPECT_THAT(heap_.parts(block), SizeIs(1));
    free(heap_, block);
  }
}

TEST_F(PlainMemory, ABlockLiesWithinOneSegmentThoughTwoAreSideBySide) {
  void* const first = allocate(heap_, 20_MiB, one_);
  void* const second = allocate(heap_, 20_MiB, one_);
  ASSERT_EQ(Address::of(second) - Address::of(first), 20_MiB) << "else nothing is tested";
  free(heap_, first);
  free(heap_, second);
  void* const both = allocate(heap_, 40_MiB, one_);
  EXPECT_THAT(heap_.parts(both), SizeIs(1));
  EXPECT_EQ(heap_.parts(both)[0].page_bytes, 40_MiB);
  EXPECT_EQ(segments(), 3u);
  free(heap_, both);
}

TEST_F(PlainMemory, AFreedBlockServesAnotherStreamAfterItsFence) {
  void* const block = allocate(heap_, 64_MiB, one_);
  write(other_, block, 64_MiB, 5_ms);
  ASSERT_TRUE(heap_.fence(block, other_).ok());
  free(heap_, block);
  void* const next = allocate(heap_, 64_MiB, one_);
  EXPECT_EQ(next, block);
  write(one_, next, 64_MiB);
  EXPECT_EQ(heap_.statistics().stream_waits, 1u);
  EXPECT_EQ(device_.host_waits(), 0u);
  free(heap_, next);
}

TEST_F(PlainMemory, TrimGivesBackTheSegmentsThatAreIdleAndDone) {
  void* const kept = allocate(heap_, 1_MiB, one_);
  void* const done = allocate(heap_, 20_MiB, one_);
  void* const runs = allocate(heap_, 40_MiB, one_);
  write(one_, done, 20_MiB, 1_us);
  device_.finish();
  write(one_, runs, 40_MiB, 5_ms);
  free(heap_, done);
  free(heap_, runs);
  const Result<Bytes> gone = heap_.trim();
  ASSERT_TRUE(gone.ok());
  EXPECT_LE(*gone, 20_MiB);  // what is done, or nothing: the stream's later work is not
  device_.finish();
  ASSERT_TRUE(heap_.trim().ok());
  EXPECT_EQ(held(), kShared);
  EXPECT_EQ(device_.physical_bytes(), kShared);
  EXPECT_FALSE(heap_.owns(runs));
  EXPECT_TRUE(heap_.owns(kept));
  free(heap_, kept);
}

TEST_F(PlainMemory, MemoryOfOthersNearbyIsNotTheHeaps) {
  void* const block = allocate(heap_, 4_MiB, one_);
  const Address foreign = device_.allocate_segment(2_MiB).value();
  void* const next = allocate(heap_, 100_MiB, one_);
  EXPECT_TRUE(heap_.owns(block) && heap_.owns(next));
  EXPECT_FALSE(heap_.owns(foreign.pointer()));
  EXPECT_FALSE(heap_.deallocate(foreign.pointer()).ok());
  free(heap_, block);
  free(heap_, next);
  ASSERT_TRUE(device_.free_segment(foreign, 2_MiB).ok());
}

TEST_F(PlainMemory, IdleSegmentsGoRatherThanBeOutOfMemory) {
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(allocate(heap_, 80_MiB, one_));
  for (void* const block : blocks) free(heap_, block);
  void* const large = allocate(heap_, 900_MiB, one_);
  EXPECT_LE(held(), 1_GiB);
  free(heap_, large);
}

TEST_F(PlainMemory, IdleSegmentsStayWhereAllOfThemWouldNotDo) {
  void* const block = allocate(heap_, 80_MiB, one_);
  void* const busy = allocate(heap_, 300_MiB, one_);
  free(heap_, block);
  device_.finish();
  EXPECT_FALSE(heap_.allocate(800_MiB, one_).ok());
  EXPECT_EQ(held(), 380_MiB);
  free(heap_, busy);
}

TEST_F(PlainMemory, KeepsToItsLimitAndSaysWhenThatLeavesNoRoom) {
  heap_.set_limit(64_MiB);
  void* const block = allocate(heap_, 40_MiB, one_);
  void* const small = allocate(heap_, 1_MiB, one_);  // no room for a shared segment
  EXPECT_LE(held(), 64_MiB);
  const Result<void*> more = heap_.allocate(30_MiB, one_);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code(), ErrorCode::out_of_memory);
  free(heap_, block);
  free(heap_, small);
}

TEST_F(PlainMemory, GraphPoolsHaveItTooAndShareWhatIsIdle) {
  void* const first = allocate(heap_, 600_MiB, one_);
  free(heap_, first);
  GraphPool pool(heap_);
  {
    const auto warm_up = pool.warm_up(one_);
    void* const block = allocate(heap_, 600_MiB, one_);  // would not fit beside the idle segment
    EXPECT_LE(device_.physical_bytes(), 1_GiB);
    EXPECT_THAT(heap_.parts(block), SizeIs(1));
    write(one_, block, 600_MiB);
    free(heap_, block);
  }
  EXPECT_EQ(device_.calls(DeviceCall::create), 0u);
  device_.finish();
}

class PlainPool : public CoreHeap {
 protected:
  PlainPool() : CoreHeap({.memory = 1_GiB}) {}
  void TearDown() override {
    EXPECT_THAT(heap_.validate(), IsEmpty());
    EXPECT_THAT(device_.races(), IsEmpty());
  }
  void* allocate_in_pool(Bytes size) {
    const auto binding = pool_->warm_up(one_);
    return allocate(heap_, size, one_);
  }

  DeviceHeap heap_{device_};
  std::unique_ptr<GraphPool> pool_ =
      std::make_unique<GraphPool>(heap_, GraphPoolOptions{.memory = MemoryKind::plain});
  const Stream one_ = device_.new_stream(), other_ = device_.new_stream();
};

TEST_F(PlainPool, ServesPlainMemoryBesideAHeapOfPages) {
  void* const plain = allocate_in_pool(40_MiB);
  void* const paged = allocate(heap_, 40_MiB, one_);
  EXPECT_EQ(device_.calls(DeviceCall::allocate_segment), 1u);
  EXPECT_GT(device_.calls(DeviceCall::create), 0u);
  EXPECT_THAT(heap_.parts(plain), SizeIs(1));
  write(one_, plain, 40_MiB);
  EXPECT_EQ(heap_.find(plain)->pool, pool_->id());
  free(heap_, plain);
  free(heap_, paged);
}

// Idle memory of one kind is of no use to the other, and goes back to the device when it is short.
TEST_F(PlainPool, IdleMemoryOfTheOtherKindGoesRatherThanBeOutOfMemory) {
  for (int round = 0; round < 3; ++round) {
    void* const paged = allocate(heap_, 800_MiB, one_);
    write(one_, paged, 800_MiB);
    free(heap_, paged);
    void* const plain = allocate_in_pool(800_MiB);
    write(one_, plain, 800_MiB);
    free(heap_, plain);
  }
  EXPECT_LE(device_.physical_bytes(), 1_GiB);
}

TEST_F(PlainPool, GoesBackToTheDeviceWhenItIsClosed) {
  void* const plain = allocate_in_pool(40_MiB);
  pool_.reset();
  EXPECT_TRUE(heap_.owns(plain));
  free(heap_, plain);
  device_.finish();
  ASSERT_TRUE(heap_.trim().ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  // A pool of another kind is not made of it.
  GraphPool pages(heap_);
  const auto binding = pages.warm_up(one_);
  void* const paged = allocate(heap_, 1_MiB, one_);
  EXPECT_GT(device_.calls(DeviceCall::create), 0u);
  free(heap_, paged);
}

TEST_F(PlainPool, CapturesUseItAndTheGraphReplays) {
  auto binding = pool_->capture([this](Stream stream) { return stream == one_; }, one_);
  ASSERT_TRUE(binding.ok());
  ASSERT_TRUE(device_.begin_capture(one_, CaptureMode::relaxed).ok());
  void* const block = allocate(heap_, 40_MiB, one_);
  write(one_, block, 40_MiB);
  free(heap_, block);
  const GraphHandle graph = device_.end_capture(one_).value();
  binding->close(/*keep=*/true);
  const ExecutableHandle launchable = device_.instantiate(graph).value();
  ASSERT_TRUE(device_.launch_graph(launchable, one_).ok());
  ASSERT_TRUE(heap_.trim().ok());
  EXPECT_GT(device_.physical_bytes(), 0_B) << "the graph still uses it";
  device_.finish();
  ASSERT_TRUE(device_.destroy_executable(launchable).ok());
  ASSERT_TRUE(device_.destroy_graph(graph).ok());
  pool_->release_graph();
  pool_.reset();
  ASSERT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

TEST_F(PlainMemory, ADeviceThatHasNoneSaysSo) {
  class PagesOnly final : public ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    Result<Address> allocate_segment(Bytes size) override { return Device::allocate_segment(size); }
  };
  PagesOnly device(device_);
  DeviceHeap heap(device, {.memory = MemoryKind::plain});
  const Result<void*> block = heap.allocate(1_MiB, one_);
  ASSERT_FALSE(block.ok());
  EXPECT_EQ(block.error().code(), ErrorCode::unavailable);
  EXPECT_THAT(block.error().message(), HasSubstr("has no plain memory"));
}

}  // namespace
}  // namespace weir::test
