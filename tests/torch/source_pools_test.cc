// SPDX-License-Identifier: Apache-2.0
// Pools whose memory another allocator gives (torch.cuda.MemPool(allocator)), as PyTorch asks.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "tests/torch/fake_source.h"
#include "torch/device_memory.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

using native::TraceEntry;

constexpr c10::MempoolId_t kCustom{0, 1}, kGraph{1, 0};

class SourcePools : public testing::Test {
 protected:
  void SetUp() override { memory_.pools().retain(kCustom, source_of(source_)); }
  void TearDown() override {
    EXPECT_EQ(device_.race_count(), 0u);
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
  }
  // As `with torch.cuda.use_mem_pool(pool)` begins and ends.
  void use() {
    check(memory_.pools().begin(
        kCustom, [](cudaStream_t) { return true; }, a_));
  }
  void leave() {
    check(memory_.pools().end(kCustom));
    check(memory_.pools().release(kCustom));
  }
  void* allocate(Bytes bytes) { return allocate(bytes, a_); }
  void* allocate(Bytes bytes, Stream stream) {
    use();
    void* const block = memory_.allocate(bytes, stream);
    leave();
    return block;
  }
  void free(void* block) { EXPECT_TRUE(memory_.deallocate(block)); }
  // The MemPool goes: its last use, then its memory.
  void drop_pool() {
    check(memory_.pools().release(kCustom));
    memory_.empty(kCustom);
  }
  Pools::Filter takes_captured() {
    return [this](cudaStream_t asking) {
      return device_.capture_info(Stream::of_captured(asking))->status != CaptureInfo::Status::none;
    };
  }

  SimDevice device_;
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream();
  DeviceHeap heap_{device_};
  const std::shared_ptr<FakeSource> source_ = std::make_shared<FakeSource>(device_);
  DeviceMemory::OutOfMemoryObserver observer_;
  DeviceMemory memory_{0, device_, heap_, [this](const DeviceMemory::Refusal& refused) {
                         if (observer_) observer_(refused);
                       }};
};

TEST_F(SourcePools, MemoryOfAnotherAllocatorCannotSleepAndIsNamed) {
  void* const block = allocate(8_MiB);
  const Result<SleepReport> refused = heap_.tags().sleep();
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(),
              testing::HasSubstr("of tag 'default': MemPools with an allocator of their own"));
  EXPECT_EQ(heap_.tags().sleep({.keep = true})->kept.size(), 1u);
  ASSERT_TRUE(heap_.tags().wake().ok());
  free(block);
  drop_pool();
  EXPECT_TRUE(heap_.tags().sleep().ok());
  EXPECT_TRUE(heap_.tags().wake().ok());
}

// NCCL groups register them in that order, which is the same on all ranks; addresses are not.
TEST_F(SourcePools, SegmentsAreNumberedInTheOrderInWhichTheyCame) {
  std::map<std::int32_t, std::size_t> sizes;
  const Bytes wanted[] = {64_MiB, 30_MiB, 1_KiB, 50_MiB};
  std::vector<void*> blocks;
  for (const Bytes bytes : wanted) blocks.push_back(allocate(bytes));
  for (const auto& segment : memory_.segments(kCustom)) {
    EXPECT_GE(segment.registration_counter, 0);
    sizes[segment.registration_counter] = segment.requested_size;
  }
  std::vector<Bytes> in_order;
  for (const auto& [number, bytes] : sizes) in_order.push_back(Bytes{bytes});
  EXPECT_THAT(in_order, testing::ElementsAreArray(wanted));
  for (void* const block : blocks) free(block);
  drop_pool();
}

TEST_F(SourcePools, TheSourceIsAskedForWhatPyTorchsOwnAsksFor) {
  std::vector<void*> blocks;
  for (const Bytes bytes : {1_MiB, 1_MiB + 1_B, 9_MiB, 10_MiB, 11_MiB + 1_B, 1_B}) {
    blocks.push_back(allocate(bytes));
  }
  EXPECT_THAT(source_->asked,
              testing::ElementsAre((2_MiB).count, (20_MiB).count, (10_MiB).count, (12_MiB).count));
  int found = 0;
  for (const auto& segment : memory_.segments(kCustom)) {  // less than 1 MiB is left of the last
    if (segment.total_size != (12_MiB).count) continue;
    ++found;
    EXPECT_EQ(segment.blocks.size(), 1u);
  }
  EXPECT_EQ(found, 1);
  for (void* const block : blocks) free(block);
  drop_pool();
}

TEST_F(SourcePools, FreeNeighboursMergeAndTheBestFitIsTaken) {
  void* const first = allocate(4_MiB);
  void* const second = allocate(6_MiB);
  void* const third = allocate(9_MiB);  // 20 MiB with them, but for 1 MiB
  EXPECT_EQ(source_->asked.size(), 1u);
  free(first);
  free(third);
  EXPECT_EQ(allocate(8_MiB), third);  // the first is too small
  EXPECT_EQ(allocate(3_MiB), first);
  free(first);
  free(second);
  EXPECT_EQ(allocate(9_MiB), first);  // the two are one
  EXPECT_EQ(source_->asked.size(), 1u);
  free(first);
  free(third);
  void* const all = allocate(20_MiB);
  EXPECT_EQ(all, first);
  EXPECT_EQ(source_->asked.size(), 1u);
  free(all);
  drop_pool();
  EXPECT_THAT(source_->given_back, testing::ElementsAre(first));
}

TEST_F(SourcePools, ARecordedStreamHoldsABlockBackUntilItsWorkIsDone) {
  void* const block = allocate(8_MiB);
  ASSERT_TRUE(device_.launch(b_, Writes(block, 8_MiB), 5_ms).ok());
  EXPECT_TRUE(memory_.record_stream(block, b_));
  free(block);
  EXPECT_FALSE(memory_.deallocate(block));  // freed twice
  EXPECT_FALSE(memory_.record_stream(block, b_));
  void* const meanwhile = allocate(8_MiB);
  EXPECT_NE(meanwhile, block);
  ASSERT_TRUE(device_.launch(a_, Writes(meanwhile, 8_MiB), 1_ms).ok());
  device_.advance(10_ms);
  void* const then = allocate(8_MiB);
  EXPECT_EQ(then, block);
  ASSERT_TRUE(device_.launch(a_, Writes(then, 8_MiB), 1_ms).ok());
  EXPECT_EQ(device_.host_waits(), 0u);
  free(meanwhile);
  free(then);
  drop_pool();
  EXPECT_EQ(source_->held, 0u);
}

TEST_F(SourcePools, ItsOwnStreamHoldsABlockBackNoLonger) {
  void* const block = allocate(8_MiB);
  EXPECT_TRUE(memory_.record_stream(block, a_));
  free(block);
  EXPECT_EQ(allocate(8_MiB), block);
  EXPECT_EQ(device_.calls(DeviceCall::record), 0u);
  free(block);
  drop_pool();
}

TEST_F(SourcePools, StreamsOfAnotherDeviceHoldNothingThatIsNoBlock) {
  SimDevice other;
  const Stream user = other.new_stream();
  DeviceHeap heap(other);
  DeviceMemory of(1, other, heap);
  void* const block = allocate(8_MiB);
  EXPECT_FALSE(memory_.record_stream(this, user, &of));
  EXPECT_FALSE(memory_.record_stream(static_cast<char*>(block) + 512, user, &of));
  EXPECT_TRUE(memory_.record_stream(block, user, &of));
  free(block);
  drop_pool();
}

// torch.cuda.MemPool(allocator, use_on_oom=True).
TEST_F(SourcePools, AsAReserveAPoolServesRequestsThatFindNoMemoryFromItsFreeBlocks) {
  heap_.set_limit(4_MiB);
  void* const block = memory_.allocate(4_MiB, a_);
  free(allocate(8_MiB));  // of a segment of 20 MiB
  EXPECT_THROW((void)memory_.allocate(8_MiB, a_), c10::OutOfMemoryError);
  memory_.pools().set_use_on_oom(kCustom, true);
  void* const reserve = memory_.allocate(8_MiB, a_);
  EXPECT_THAT(memory_.segments(kCustom),
              testing::ElementsAre(testing::Field(&native::SegmentInfo::allocated_size,
                                                  testing::Eq((8_MiB).count))));
  // The pool does not grow: what it has not is a shortage of Weir's as ever.
  int told = 0;
  observer_ = [&](const DeviceMemory::Refusal&) { ++told; };
  try {
    (void)memory_.allocate(30_MiB, a_);
    ADD_FAILURE() << "there is no memory";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(
        error.what(),
        testing::AllOf(testing::HasSubstr("CUDA out of memory. Tried to allocate 30.00 MiB"),
                       testing::HasSubstr("Memory pools with an allocator of their own hold "
                                          "20.00 MiB.")));
  }
  EXPECT_EQ(told, 1);
  EXPECT_THAT(source_->asked, testing::ElementsAre((20_MiB).count));
  memory_.pools().set_use_on_oom(kCustom, false);
  EXPECT_THROW((void)memory_.allocate(8_MiB, a_), c10::OutOfMemoryError);
  free(block);
  free(reserve);
  drop_pool();
}

// Another thread leaves the pool and drops it while the source is asked: the pool stays until the
// block that comes of the request is gone.
TEST_F(SourcePools, APoolThatIsDroppedDuringARequestKeepsTheBlockThatTheRequestGets) {
  use();
  source_->while_asked = [&] {
    leave();
    drop_pool();
  };
  void* const block = memory_.allocate(8_MiB, a_);
  source_->while_asked = nullptr;
  EXPECT_TRUE(memory_.owns(block));
  free(block);
  memory_.empty({0, 0});
  EXPECT_EQ(source_->held, 0u);
  EXPECT_FALSE(memory_.pools().has_sources());
}

TEST_F(SourcePools, ARequestThatTheSourceRefusesIsOneRetryAndOneOutOfMemory) {
  source_->most = 0;
  source_->throws = false;
  EXPECT_THROW((void)allocate(8_MiB), c10::OutOfMemoryError);
  leave();
  const auto stats = memory_.statistics().stats();
  EXPECT_EQ(stats.num_alloc_retries, 1);
  EXPECT_EQ(stats.num_ooms, 1);
  drop_pool();
}

TEST_F(SourcePools, StatisticsCountBlocksAndSegmentsOfTheSource) {
  void* const own = memory_.allocate(2_MiB, a_);
  const auto before = memory_.statistics().stats();
  void* const first = allocate(8_MiB - 100_B);
  void* const second = allocate(3_MiB);
  const auto both = memory_.statistics().stats();
  free(first);
  const auto one = memory_.statistics().stats();
  const auto in_mib = [](std::int64_t bytes) { return bytes / static_cast<double>((1_MiB).count); };
  EXPECT_EQ(in_mib(both.allocated_bytes[0].current - before.allocated_bytes[0].current), 11);
  EXPECT_EQ(both.active_bytes[0].current, both.allocated_bytes[0].current);
  EXPECT_EQ(both.requested_bytes[0].current - before.requested_bytes[0].current,
            static_cast<std::int64_t>((11_MiB - 100_B).count));
  EXPECT_EQ(in_mib(both.reserved_bytes[0].current - before.reserved_bytes[0].current), 20);
  EXPECT_EQ(both.segment[0].current - before.segment[0].current, 1);
  EXPECT_EQ(both.allocation[0].current - before.allocation[0].current, 2);
  EXPECT_EQ(both.inactive_split_bytes[0].current, before.inactive_split_bytes[0].current);
  EXPECT_EQ(in_mib(both.allocated_bytes[0].current - one.allocated_bytes[0].current), 8);
  EXPECT_EQ(in_mib(one.allocated_bytes[0].freed - before.allocated_bytes[0].freed), 8);
  EXPECT_EQ(one.allocated_bytes[0].peak, both.allocated_bytes[0].current);
  memory_.statistics().reset_peaks();
  EXPECT_EQ(memory_.statistics().stats().allocated_bytes[0].peak, one.allocated_bytes[0].current);
  free(second);
  free(own);
  drop_pool();
  memory_.empty({0, 0});
  EXPECT_EQ(memory_.statistics().stats().reserved_bytes[0].current, 0);
}

TEST_F(SourcePools, AFenceNamesABlockByAnyOfItsBytes) {
  for (const bool as_a_collective : {false, true}) {
    char* const block = static_cast<char*>(allocate(8_MiB));
    EXPECT_TRUE(memory_.owns(block + 5));
    EXPECT_FALSE(memory_.owns(block + (8_MiB).count)) << "free bytes of the segment";
    ASSERT_TRUE(device_.launch(b_, Writes(block, 8_MiB), 5_ms).ok());
    if (as_a_collective) {
      const void* const inside[] = {block + 5};
      EXPECT_TRUE(memory_.fence_around(inside, b_).ok());
    } else {
      void* const inside[] = {nullptr, block + 5};
      EXPECT_TRUE(memory_.fence(inside, b_).ok());
    }
    free(block);
    void* const meanwhile = allocate(8_MiB);
    EXPECT_NE(meanwhile, block);
    ASSERT_TRUE(device_.launch(a_, Writes(meanwhile, 8_MiB), 1_ms).ok());
    void* const gone[] = {block};
    EXPECT_FALSE(memory_.fence(gone, b_).ok());
    device_.advance(10_ms);
    free(meanwhile);
    void* const again[] = {allocate(8_MiB), allocate(8_MiB)};
    EXPECT_THAT(again, testing::Contains(static_cast<void*>(block)));
    for (void* const each : again) free(each);
  }
  drop_pool();
}

TEST_F(SourcePools, BeforeASourceIsAskedInVainWaitingFreesAndIdleMemoryHelp) {
  void* const block = allocate(30_MiB);
  EXPECT_TRUE(memory_.record_stream(block, b_));
  ASSERT_TRUE(device_.launch(b_, Writes(block, 30_MiB), 5_ms).ok());
  free(block);
  source_->most = source_->held;
  EXPECT_EQ(allocate(30_MiB), block);  // the host waited for its work
  EXPECT_GE(device_.now(), 5_ms);
  source_->most = ~std::size_t{0};
  const Bytes room = device_.memory_info()->free;
  EXPECT_TRUE(memory_.deallocate(memory_.allocate(room - 20_MiB, a_)));
  ASSERT_TRUE(device_.memory_info()->free < 50_MiB);
  void* const second = allocate(50_MiB);  // what idled went back to the driver
  EXPECT_EQ(source_->asked.size(), 2u);
  for (void* const each : {block, second}) free(each);
  drop_pool();
}

TEST_F(SourcePools, WhatIsOfGraphsAndPlainMemoryIsNotForThem) {
  void* const block = allocate(8_MiB);
  EXPECT_THROW(check(memory_.pools().make_plain(kCustom)), c10::Error);
  EXPECT_THAT(check(memory_.pools().blocks(kCustom)), testing::IsEmpty());
  EXPECT_EQ(memory_.pools().uses(kCustom), 1);
  check(memory_.pools().release(kCustom));
  check(memory_.pools().release(kCustom));  // once too often
  EXPECT_EQ(memory_.pools().uses(kCustom), 0);
  free(block);
  EXPECT_EQ(source_->given_back.size(), 0u);
  check(memory_.pools().release(kCustom));
  EXPECT_EQ(source_->given_back.size(), 1u);
  EXPECT_EQ(memory_.pools().uses(kCustom), 0);
  EXPECT_FALSE(memory_.pools().has_sources());
}

// As with cudaFree(): nobody need have named them.
TEST_F(SourcePools, MemoryGoesBackOnceTheHostHasWaitedForAllStreams) {
  void* const block = allocate(8_MiB);
  ASSERT_TRUE(device_.launch(b_, Reads(block, 8_MiB), 5_ms).ok());
  free(block);
  drop_pool();  // which unmaps it, and the device would see the race
  EXPECT_EQ(source_->held, 0u);
}

// A graph that was captured into it would find its memory gone.
TEST_F(SourcePools, APoolThatIsInUseKeepsItsMemoryAsInPyTorchsOwn) {
  free(allocate(8_MiB));
  memory_.empty({0, 0});
  memory_.empty(kCustom);
  EXPECT_THAT(source_->given_back, testing::IsEmpty());
  drop_pool();
  EXPECT_EQ(source_->held, 0u);
}

TEST_F(SourcePools, APoolThatDoesNotSplitGivesEachBlockASegment) {
  memory_.pools().set_no_split(kCustom);
  void* const first = allocate(8_MiB);
  void* const second = allocate(8_MiB);
  EXPECT_THAT(source_->asked, testing::ElementsAre((20_MiB).count, (20_MiB).count));
  free(first);
  EXPECT_EQ(allocate(2_MiB), first);
  free(first);
  free(second);
  drop_pool();
}

TEST_F(SourcePools, SnapshotsShowSegmentsWithTheirBlocks) {
  void* const small = allocate(1_KiB);
  void* const first = allocate(4_MiB);
  void* const second = allocate(6_MiB);
  free(first);
  const auto segments = memory_.segments(kCustom);
  ASSERT_EQ(segments.size(), 2u);
  for (const auto& segment : segments) {
    const bool is_small = segment.address == Address::of(small).value;
    EXPECT_EQ(segment.is_large, !is_small);
    EXPECT_EQ(segment.owner_private_pool_id, kCustom);
    EXPECT_EQ(segment.total_size, is_small ? (2_MiB).count : (20_MiB).count);
    EXPECT_EQ(segment.allocated_size, is_small ? (1_KiB).count : (6_MiB).count);
    EXPECT_EQ(segment.active_size, segment.allocated_size);
    EXPECT_EQ(segment.blocks.size(), is_small ? 2u : 3u);
    std::size_t tiled = 0;
    for (const auto& block : segment.blocks) tiled += block.size;
    EXPECT_EQ(tiled, segment.total_size);
  }
  free(small);
  free(second);
  drop_pool();
}

TEST_F(SourcePools, TrackersHearOfSegmentsWithTheirPool) {
  std::vector<std::pair<TraceEntry::Action, c10::MempoolId_t>> heard;
  memory_.history().track(
      [&](const TraceEntry& entry) { heard.emplace_back(entry.action_, entry.mempool_); });
  free(allocate(1_KiB));
  drop_pool();
  EXPECT_THAT(heard, testing::ElementsAre(std::pair(TraceEntry::SEGMENT_ALLOC, kCustom),
                                          std::pair(TraceEntry::ALLOC, kCustom),
                                          std::pair(TraceEntry::FREE_REQUESTED, kCustom),
                                          std::pair(TraceEntry::FREE_COMPLETED, kCustom),
                                          std::pair(TraceEntry::SEGMENT_FREE, kCustom)));
}

TEST_F(SourcePools, ACaptureInsideACustomPoolTakesTheGraphsPool) {
  use();
  void* const before = memory_.allocate(8_MiB, a_);
  check(memory_.pools().begin(kGraph, takes_captured(), a_));
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  void* const captured = memory_.allocate(8_MiB, a_);
  const GraphHandle graph = *device_.end_capture(a_);
  check(memory_.pools().end(kGraph));
  void* const after = memory_.allocate(8_MiB, a_);
  leave();
  EXPECT_EQ(source_->asked.size(), 1u);  // 20 MiB, for the two
  EXPECT_EQ(check(memory_.pools().blocks(kGraph)).size(), 1u);
  for (void* const block : {before, captured, after}) free(block);
  ASSERT_TRUE(device_.destroy_graph(graph).ok());
  check(memory_.pools().release(kGraph));
  drop_pool();
}

// As in PyTorch's own: a pool has the source that it was made with.
TEST_F(SourcePools, APoolThatIsThereAlreadyGetsNoSource) {
  memory_.pools().retain(kGraph);
  memory_.pools().retain(kGraph, source_of(source_));
  EXPECT_EQ(memory_.pools().uses(kGraph), 2);
  check(memory_.pools().begin(
      kGraph, [](cudaStream_t) { return true; }, a_));
  free(memory_.allocate(8_MiB, a_));
  check(memory_.pools().end(kGraph));
  EXPECT_THAT(source_->asked, testing::IsEmpty());
  for (int i = 0; i < 3; ++i) check(memory_.pools().release(kGraph));
  EXPECT_FALSE(memory_.pools().release(kGraph).ok());
  drop_pool();
}

TEST_F(SourcePools, ACustomPoolInsideACaptureIsTaken) {
  check(memory_.pools().begin(kGraph, takes_captured(), a_));
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  void* const custom = allocate(8_MiB);
  void* const captured = memory_.allocate(8_MiB, a_);
  const GraphHandle graph = *device_.end_capture(a_);
  check(memory_.pools().end(kGraph));
  EXPECT_EQ(source_->asked.size(), 1u);
  EXPECT_EQ(check(memory_.pools().blocks(kGraph)).size(), 1u);
  for (void* const block : {custom, captured}) free(block);
  ASSERT_TRUE(device_.destroy_graph(graph).ok());
  check(memory_.pools().release(kGraph));
  drop_pool();
}

}  // namespace
}  // namespace weir::pytorch
