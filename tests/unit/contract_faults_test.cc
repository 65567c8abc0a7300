// SPDX-License-Identifier: Apache-2.0
// Faults that a review of the core demonstrated, or that were planted in it, each as a test:
// captures that the heap was not told of, frees beside captures, streams that are others in each
// thread, waits that were not counted, pages lost on an error, what a pool says after its pages.
#include <gtest/gtest.h>

#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

class CoreFaults : public test::CoreHeap {
 protected:
  static constexpr Bytes kBlock = 32_MiB;

  void begin_capture(Stream stream) {
    ASSERT_TRUE(device_.begin_capture(stream, CaptureMode::global).ok());
  }
  void expect_whole(Stream captured) {
    const Result<GraphHandle> graph = device_.end_capture(captured);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    EXPECT_TRUE(device_.destroy_graph(*graph).ok());
  }
  void TearDown() override {
    EXPECT_EQ(device_.race_count(), 0u);
    EXPECT_TRUE(heap_.validate().empty());
  }

  DeviceHeap heap_{device_};
};

TEST_F(CoreFaults, ARequestJoinsNoCaptureThatTheProgramBeganItself) {
  for (const Bytes size : {100_KiB, kBlock}) {
    void* const x = allocate(heap_, size, a_);
    write(a_, x, size);
    free(heap_, x);
    begin_capture(a_);
    void* const y = allocate(heap_, size, b_);
    write(b_, y, size);
    const Result<CaptureInfo> info = device_.capture_info(b_);
    EXPECT_EQ(info->status, CaptureInfo::Status::none);
    expect_whole(a_);
    free(heap_, y);
  }
}

TEST_F(CoreFaults, ARequestTakesOtherMemoryThanACapturedStreams) {
  GraphPool pool(heap_);
  Result<PoolBinding> binding = pool.capture([&](Stream asking) { return asking == a_; });
  ASSERT_TRUE(binding.ok());
  void* const x = allocate(heap_, kBlock, c_);
  write(c_, x, kBlock);
  free(heap_, x);
  begin_capture(c_);  // another one
  void* const y = allocate(heap_, kBlock, b_);
  EXPECT_NE(y, nullptr);
  write(b_, y, kBlock);
  expect_whole(c_);
  binding->close(false);
  free(heap_, y);
}

TEST_F(CoreFaults, ABlockWhoseUserIsCapturedIsFreedAfterTheCapture) {
  void* const x = allocate(heap_, kBlock, a_);
  write(a_, x, kBlock);
  ASSERT_TRUE(heap_.record_stream(x, b_).ok());
  begin_capture(b_);
  free(heap_, x);
  EXPECT_FALSE(heap_.deallocate(x).ok()) << "a second time";
  EXPECT_TRUE(heap_.find(x).has_value());
  free(heap_, allocate(heap_, kBlock, c_));
  expect_whole(b_);
  free(heap_, allocate(heap_, 1_MiB, c_));
  EXPECT_FALSE(heap_.find(x).has_value());
}

TEST_F(CoreFaults, AStreamThatIsAnotherInEachThreadIsRefused) {
  void* const per_thread = Address{2}.pointer();
  const Result<Stream> stream = heap_.stream(per_thread);
  ASSERT_FALSE(stream.ok());
  EXPECT_EQ(stream.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(stream.error().message().find("per-thread"), std::string::npos);
}

TEST_F(CoreFaults, WaitsThatNoRequestCausedAreCounted) {
  write(a_, allocate(heap_, kBlock, a_), kBlock, 1_ms);
  ASSERT_TRUE(heap_.order(a_, b_).ok());
  EXPECT_EQ(heap_.statistics().stream_waits, 1u);
  const Result<Fence> fence = heap_.take_fence({}, a_);
  ASSERT_TRUE(fence.ok());
  ASSERT_TRUE(heap_.wait(c_, *fence).ok());
  EXPECT_EQ(heap_.statistics().stream_waits, 2u);
  // A graph waits for eager work on its pool's memory, and a warm-up for graphs.
  GraphPool pool(heap_);
  Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
  ASSERT_TRUE(capture.ok());
  free(heap_, allocate(heap_, kBlock, a_));
  Result<Graph> graph = capture->end();
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(graph->launch(a_).ok());
  Result<PoolBinding> warm_up = pool.warm_up(b_);
  ASSERT_TRUE(warm_up.ok());
  void* const y = allocate(heap_, kBlock, b_);
  EXPECT_EQ(heap_.statistics().stream_waits, 3u) << "the warm-up for the graph";
  write(b_, y, kBlock, 1_ms);
  free(heap_, y);
  warm_up->close();
  ASSERT_TRUE(graph->launch(c_).ok());
  EXPECT_EQ(heap_.statistics().stream_waits, 4u) << "the graph for the warm-up";
  device_.finish();
}

TEST_F(CoreFaults, AStateThatCantBeRestoredChangesNothing) {
  GraphPool pool(heap_);
  Result<PoolBinding> binding = pool.warm_up(a_);
  ASSERT_TRUE(binding.ok());
  void* const old = allocate(heap_, kBlock, a_);
  const std::vector<PlacedBlock> wanted = pool.blocks();
  free(heap_, old);
  void* const large = allocate(heap_, kBlock * 3, a_);
  void* const other = allocate(heap_, 1_MiB, a_);
  const std::vector<PlacedBlock> before = pool.blocks();
  std::vector<PlacedBlock> impossible = wanted;
  const Address elsewhere{std::uint64_t{1} << 40};
  impossible.push_back({elsewhere, kBlock, kBlock, a_, elsewhere});
  EXPECT_FALSE(pool.restore(impossible).ok());
  const std::vector<PlacedBlock> after = pool.blocks();
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].address, before[i].address);
  free(heap_, large);
  free(heap_, other);
}

// set_access failed, and so did the unmap that was to make up for it.
TEST_F(CoreFaults, AMappingThatTheDriverDidNotTakeBackIsTriedAgain) {
  device_.fail(DeviceCall::set_access, 1);
  device_.fail(DeviceCall::unmap, 1);
  EXPECT_FALSE(heap_.allocate(kBlock, a_).ok());
  EXPECT_EQ(device_.live().mappings, 1u);
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(device_.live().mappings, 0u);
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  free(heap_, allocate(heap_, kBlock, a_));
}

// The pages that could not be mapped are held, and no others can be created beside them.
TEST_F(CoreFaults, PagesThatAreHeldAreNotLostWhereMoreCantBeHad) {
  device_.fail(DeviceCall::map, 1);
  EXPECT_FALSE(heap_.allocate(kBlock, a_).ok());
  const Bytes held{heap_.statistics().reserved_bytes.current};
  EXPECT_GE(held, kBlock);
  device_.fail(DeviceCall::create, 1);
  EXPECT_FALSE(heap_.allocate(kBlock * 4, a_).ok());
  EXPECT_EQ(Bytes{heap_.statistics().reserved_bytes.current}, held);
  free(heap_, allocate(heap_, kBlock, a_));
  EXPECT_EQ(Bytes{heap_.statistics().reserved_bytes.current}, held) << "they serve";
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

// The host waits for the recorded stream too, before the capture begins.
TEST_F(CoreFaults, ACaptureHasTheMemoryThatARecordedStreamUsed) {
  GraphPool pool(heap_);
  Result<PoolBinding> warm_up = pool.warm_up(a_);
  ASSERT_TRUE(warm_up.ok());
  void* const x = allocate(heap_, kBlock, a_);
  write(a_, x, kBlock);
  ASSERT_TRUE(heap_.record_stream(x, b_).ok());
  write_after(b_, a_, x, kBlock, 10_ms);
  free(heap_, x);
  warm_up->close();
  Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  EXPECT_GE(device_.now(), 10_ms);
  void* const y = allocate(heap_, kBlock, a_);
  EXPECT_EQ(y, x);
  free(heap_, y);
  EXPECT_TRUE(capture->end().ok());
}

TEST_F(CoreFaults, ThePeakOfAPoolIsKnownAfterItsPagesAreGone) {
  GraphPool pool(heap_);
  Result<PoolBinding> warm_up = pool.warm_up(a_);
  ASSERT_TRUE(warm_up.ok());
  free(heap_, allocate(heap_, kBlock, a_));
  warm_up->close();
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(pool.statistics().reserved_bytes, 0_B);
  EXPECT_EQ(pool.statistics().peak_reserved_bytes, kBlock);
}

}  // namespace
}  // namespace weir
