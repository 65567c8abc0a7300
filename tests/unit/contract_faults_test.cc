// SPDX-License-Identifier: Apache-2.0
// Faults that a review of the core demonstrated, or that were planted in it, each as a test:
// captures that the heap was not told of, frees beside captures, streams that are others in each
// thread, waits that were not counted, memory that is lost, kept or given away too early.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"
#include "weir/interposed_device.h"

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

TEST_F(CoreFaults, BlocksThatACapturedStreamUsesTogetherAreFreedAfterTheCapture) {
  void* const both[] = {allocate(heap_, kBlock, a_), allocate(heap_, 100_KiB, a_)};
  GraphPool pool(heap_);
  Result<CaptureScope> capture = CaptureScope::begin(pool, b_);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  const Status fenced = heap_.fence(both, b_);
  EXPECT_TRUE(fenced.ok()) << fenced.error().message();
  for (void* const block : both) free(heap_, block);
  for (void* const block : both) EXPECT_TRUE(heap_.find(block).has_value());
  EXPECT_TRUE(capture->end().ok());
  free(heap_, allocate(heap_, 1_MiB, c_));
  for (void* const block : both) EXPECT_FALSE(heap_.find(block).has_value());
}

// It may be a graph's then, or eager work: the block is as safe as after either.
TEST_F(CoreFaults, AUseIsNotedThoughTheDeviceDoesNotSayWhetherItIsCaptured) {
  void* const x = allocate(heap_, kBlock, a_);
  GraphPool pool(heap_);
  Result<PoolBinding> binding = pool.warm_up(c_);
  ASSERT_TRUE(binding.ok()) << binding.error().message();
  write(b_, x, kBlock, 10_ms);
  const void* const inside[] = {static_cast<char*>(x) + 1};
  for (std::uint64_t nth = 1; nth <= 8; ++nth) device_.fail(DeviceCall::capture_info, nth);
  const Result<std::optional<Fence>> fence = heap_.fence_use(inside, b_, /*exact=*/false);
  (void)device_.forget_faults();
  ASSERT_FALSE(fence.ok());
  EXPECT_EQ(fence.error().code(), ErrorCode::device);
  free(heap_, x);
  binding->close();
  void* const y = allocate(heap_, kBlock, a_);
  EXPECT_EQ(y, x);
  write(a_, y, kBlock);
  EXPECT_EQ(device_.race_count(), 0u);
  free(heap_, y);
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
  const std::optional<Fence> fence = heap_.fence_use({}, a_, true).value();
  ASSERT_TRUE(fence);
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

// The driver can't say when the graph is gone, as its capture asked for no memory; and of the
// stream that it runs on only the pool has heard.
TEST_F(CoreFaults, MemoryOfAGraphThatIsNotWatchedStaysUntilItsLaunchIsDone) {
  GraphPool pool(heap_);
  Result<PoolBinding> binding = pool.warm_up(a_);
  ASSERT_TRUE(binding.ok());
  void* const x = allocate(heap_, kBlock, a_);
  binding->close();
  binding = pool.capture([&](Stream asking) { return asking == a_; });
  ASSERT_TRUE(binding.ok()) << binding.error().message();
  begin_capture(a_);
  write(a_, x, kBlock, 50_ms);
  const Result<GraphHandle> graph = device_.end_capture(a_);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  binding->close();
  const Result<ExecutableHandle> executable = device_.instantiate(*graph);
  ASSERT_TRUE(executable.ok());
  EXPECT_TRUE(device_.destroy_graph(*graph).ok());
  free(heap_, x);
  GraphPool other(heap_);
  EXPECT_TRUE(CaptureScope::begin(other, c_).ok());  // for which all work so far is recorded
  device_.finish();
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_GE(pool.statistics().reserved_bytes, kBlock) << "the graph may use it";
  ASSERT_TRUE(device_.launch_graph(*executable, a_).ok());
  pool.release_graph();
  EXPECT_TRUE(device_.destroy_executable(*executable).ok());
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_GE(pool.statistics().reserved_bytes, kBlock) << "its launch runs";
  device_.finish();
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(pool.statistics().reserved_bytes, 0_B);
}

}  // namespace
}  // namespace weir
