// SPDX-License-Identifier: Apache-2.0
// Plain memory (MemoryKind::plain): segments that the device gives, which have one address each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"
#include "weir/interposed_device.h"

namespace weir::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class PlainMemory : public CoreHeap {
 protected:
  explicit PlainMemory(const HeapOptions& options = {.memory = MemoryKind::plain})
      : CoreHeap({.memory = 1_GiB}), heap_(device_, options) {}
  void TearDown() override {
    EXPECT_THAT(heap_.validate(), IsEmpty());
    EXPECT_THAT(device_.races(), IsEmpty());
  }
  std::uint64_t segments() const {
    return device_.calls(DeviceCall::allocate_segment) - device_.calls(DeviceCall::free_segment);
  }
  Bytes held() const { return Bytes{heap_.statistics().reserved_bytes.current}; }

  DeviceHeap heap_;
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
  // Two of 2 MiB for the smallest, and one each for the others.
  EXPECT_EQ(segments(), 5u);
  EXPECT_EQ(held(), 4_MiB + 4_MiB + 20_MiB + 70_MiB);
  EXPECT_EQ(device_.physical_bytes(), held());
  for (void* const block : blocks) {
    EXPECT_TRUE(heap_.owns(block));
    EXPECT_THAT(heap_.parts(block), SizeIs(1));
    free(heap_, block);
  }
}

TEST(PlainMemoryOfACoarseDevice, SharedSegmentsAreMadeOfItsUnits) {
  SimDevice device({.memory = 1_GiB, .granularity = 4_MiB});
  DeviceHeap heap(device, {.memory = MemoryKind::plain});
  const Stream stream = device.new_stream();
  for (int i = 0; i < 8; ++i) {
    const Result<void*> block = heap.allocate(3_MiB, stream);
    ASSERT_TRUE(block.ok()) << block.error().message();
  }
  EXPECT_THAT(heap.validate(), IsEmpty());
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

// In a pool of its own, beside pages.
class PlainPool : public PlainMemory {
 protected:
  PlainPool() : PlainMemory(HeapOptions()) {}
  void* allocate_in_pool(Bytes size) { return pool_->allocate(size, one_).value(); }

  std::unique_ptr<GraphPool> pool_ =
      std::make_unique<GraphPool>(heap_, GraphPoolOptions{.memory = MemoryKind::plain});
};

TEST_F(PlainPool, StatisticsTellItApart) {
  void* const plain = allocate_in_pool(40_MiB);
  void* const freed = allocate_in_pool(60_MiB);
  void* const paged = allocate(heap_, 100_MiB, one_);
  free(heap_, freed);
  const HeapSnapshot snapshot = heap_.snapshot();  // gives back cached blocks
  const Statistics& now = snapshot.statistics;
  EXPECT_EQ(now.plain_bytes.current, (100_MiB).count);
  EXPECT_EQ(now.plain_leased_bytes.current, (40_MiB).count);
  EXPECT_EQ(now.plain_leased_bytes.peak, (100_MiB).count);
  EXPECT_EQ(now.plain_live_bytes, (40_MiB).count);
  EXPECT_EQ(now.live_bytes.current, (140_MiB).count);
  for (const HeapInfo& heap : snapshot.heaps) {
    EXPECT_EQ(heap.memory == MemoryKind::plain, heap.pool == pool_->id());
  }
  free(heap_, plain);
  free(heap_, paged);
  device_.finish();
  ASSERT_TRUE(heap_.trim().ok());
  EXPECT_EQ(heap_.statistics().plain_bytes.current, 0u);
  EXPECT_EQ(heap_.statistics().plain_bytes.peak, (100_MiB).count);
  heap_.reset_peaks();
  EXPECT_EQ(heap_.statistics().plain_bytes.peak, 0u);
}

TEST_F(PlainPool, AMessageOfMemoryRunningOutTellsItApart) {
  void* const plain = allocate_in_pool(300_MiB);
  void* const paged = allocate(heap_, 600_MiB, one_);
  const auto message = [](const Result<void*>& none) {
    return none.ok() ? std::string() : none.error().message();
  };
  EXPECT_THAT(
      message(heap_.allocate(200_MiB, one_)),
      AllOf(testing::StartsWith("out of memory: 200.00 MiB asked for"),
            HasSubstr("; held 900.00 MiB with no limit set"), HasSubstr("in use 900.00 MiB"),
            HasSubstr("; of it plain memory: held 300.00 MiB, in use 300.00 MiB, idle 0 B"),
            HasSubstr("stream " + std::to_string(one_.id) + " holds 900.00 MiB in 2 blocks")));
  EXPECT_THAT(
      message(pool_->allocate(200_MiB, one_)),
      testing::StartsWith("plain memory of pool " + std::to_string(pool_->id()) +
                          " (300.00 MiB held, 300.00 MiB live): out of memory: 200.00 MiB"));
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

TEST_F(PlainPool, TrimCountsWhatGoesAndKeepsWhatItIsToldTo) {
  for (const Bytes size : {40_MiB, 60_MiB}) {
    void* const plain = allocate_in_pool(size);
    void* const paged = allocate(heap_, size, one_);
    free(heap_, plain);
    free(heap_, paged);
  }
  device_.finish();
  const Bytes held = device_.physical_bytes();
  EXPECT_EQ(heap_.trim(held).value(), 0_B);
  EXPECT_EQ(device_.physical_bytes(), held);
  const Bytes gone = heap_.trim(50_MiB).value();
  EXPECT_EQ(device_.physical_bytes(), held - gone);
  EXPECT_LE(device_.physical_bytes(), 50_MiB);
  EXPECT_EQ(heap_.trim().value(), held - gone);
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

TEST_F(PlainPool, SaysWhatTheDeviceRefusesToTakeBack) {
  free(heap_, allocate_in_pool(40_MiB));
  device_.finish();
  device_.fail(DeviceCall::free_segment, 1);
  const Result<Bytes> gone = heap_.trim();
  ASSERT_FALSE(gone.ok());
  EXPECT_THAT(gone.error().message(), HasSubstr("free_segment"));
  // No block can be there until it is used again, so it counts as not mapped.
  EXPECT_EQ(heap_.statistics().mappings.current, 0u);
  EXPECT_EQ(device_.live().mappings, 1u);
  ASSERT_EQ(heap_.snapshot().pages.size(), 1u);
  EXPECT_EQ(heap_.snapshot().pages.front().mappings, 0u);
  const std::uint64_t before = device_.calls(DeviceCall::allocate_segment);
  free(heap_, allocate_in_pool(40_MiB));  // it is there all the same
  EXPECT_EQ(device_.calls(DeviceCall::allocate_segment), before);
  EXPECT_THAT(heap_.validate(), IsEmpty());
  device_.finish();
  EXPECT_EQ(heap_.trim().value(), 40_MiB);
}

TEST_F(PlainPool, RefusesStreamsThatAreCapturedElsewhere) {
  ASSERT_TRUE(device_.begin_capture(other_, CaptureMode::relaxed).ok());
  const Result<void*> block = pool_->allocate(1_MiB, other_);
  ASSERT_FALSE(block.ok());
  EXPECT_THAT(block.error().message(), HasSubstr("not into this pool's capture"));
  EXPECT_EQ(pool_->allocate(0_B, one_).value(), nullptr);
  (void)device_.end_capture(other_);
}

// Whoever registers memory hears of it once it is there, and before it goes.
TEST_F(PlainPool, EventsSayWhatIsPlainAndComeWhileTheMemoryIsThere) {
  struct Listener final : EventSink {
    explicit Listener(const SimDevice& device) : device(device) {}
    void on_event(const Event& event) override {
      if (event.kind != EventKind::map && event.kind != EventKind::unmap) return;
      (event.plain ? plain : pages) += event.kind == EventKind::map ? 1 : -1;
      there = there && !device.translate(event.address, event.bytes).empty();
    }
    const SimDevice& device;
    int plain = 0, pages = 0;
    bool there = true;
  } listener(device_);
  free(heap_, allocate_in_pool(40_MiB));
  heap_.start_recording(listener);
  EXPECT_EQ(listener.plain, 1);
  void* const paged = allocate(heap_, 40_MiB, one_);
  free(heap_, allocate_in_pool(80_MiB));
  EXPECT_EQ(listener.plain, 2);
  EXPECT_GT(listener.pages, 0);
  free(heap_, paged);
  device_.finish();
  ASSERT_TRUE(heap_.trim().ok());
  EXPECT_EQ(listener.plain, 0);
  EXPECT_EQ(listener.pages, 0);
  EXPECT_TRUE(listener.there);
  heap_.stop_recording(listener);
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

TEST_F(PlainMemory, SegmentsBeyond49BitsAreRefusedAndGoBack) {
  class HighSegments final : public ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    Result<Address> allocate_segment(Bytes) override { return kHigh; }
    Status free_segment(Address at, Bytes size) override {
      EXPECT_EQ(at, kHigh);
      given_back.push_back(size);
      return {};
    }
    const Address kHigh{(std::uint64_t{1} << 49) - (2_MiB).count};  // its last bytes are beyond
    std::vector<Bytes> given_back;
  };
  HighSegments device(device_);
  DeviceHeap heap(device, {.memory = MemoryKind::plain});
  const Result<void*> refused = heap.allocate(4_MiB, one_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::device);
  EXPECT_THAT(refused.error().message(), HasSubstr("memory at addresses beyond 49 bits"));
  EXPECT_THAT(device.given_back, testing::ElementsAre(4_MiB));
  EXPECT_EQ(heap.statistics().reserved_bytes.current, 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
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
