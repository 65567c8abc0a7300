// SPDX-License-Identifier: Apache-2.0
// Faults that a review of the core demonstrated, or that were planted in it, each as a test:
// captures that the heap was not told of, frees beside captures, streams that are others in each
// thread, waits that were not counted, memory that is lost, kept or given away too early.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
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

TEST_F(CoreFaults, ACaptureThatMakesNoGraphKeepsNoMemory) {
  GraphPool pool(heap_);
  Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  void* const x = allocate(heap_, kBlock, a_);
  write(a_, x, kBlock);
  free(heap_, x);
  device_.fail(DeviceCall::instantiate, 1);
  EXPECT_FALSE(capture->end().ok());
  EXPECT_EQ(pool.statistics().graphs, 0u);
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

// Though the capture's binding is open still.
TEST_F(CoreFaults, ABlockThatACaptureUsedIsFreedByTheRequestThatFindsItOver) {
  void* const x = allocate(heap_, kBlock, b_);
  GraphPool pool(heap_);
  Result<PoolBinding> binding = pool.capture([&](Stream asking) { return asking == a_; }, a_);
  ASSERT_TRUE(binding.ok()) << binding.error().message();
  begin_capture(a_);
  free(heap_, allocate(heap_, 1_MiB, a_));
  ASSERT_TRUE(heap_.fence(x, a_).ok());
  free(heap_, x);
  expect_whole(a_);
  EXPECT_TRUE(heap_.find(x).has_value());
  free(heap_, allocate(heap_, 1_MiB, c_));
  EXPECT_FALSE(heap_.find(x).has_value());
  binding->close();
}

// The device has no event for it now: the block takes its fence when it is freed.
TEST_F(CoreFaults, AUseThatCantBeFencedNowIsFencedByTheFree) {
  void* const x = allocate(heap_, kBlock, a_);
  write(b_, x, kBlock, 10_ms);
  const void* const inside[] = {static_cast<char*>(x) + 1};
  device_.fail(DeviceCall::record, 1);
  const Result<std::optional<Fence>> fence = heap_.fence_use(inside, b_, /*exact=*/false);
  ASSERT_TRUE(fence.ok()) << fence.error().message();
  EXPECT_FALSE(fence->has_value());
  free(heap_, x);
  void* const y = allocate(heap_, kBlock, a_);
  EXPECT_EQ(y, x);
  write(a_, y, kBlock);
  EXPECT_EQ(device_.race_count(), 0u);
  free(heap_, y);
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

// What it would have used was never in use: memory that is free serves before new memory does.
TEST_F(CoreFaults, ARequestThatTheDeviceRefusedIsNoReasonToHoldMore) {
  void* const x = allocate(heap_, kBlock, a_);
  write(a_, x, kBlock, 10_ms);
  device_.fail(DeviceCall::create, 1);
  EXPECT_FALSE(heap_.allocate(kBlock * 16, a_).ok());
  free(heap_, x);
  void* const y = allocate(heap_, kBlock / 2, b_);
  write(b_, y, kBlock / 2);
  EXPECT_EQ(Bytes{heap_.statistics().reserved_bytes.current}, kBlock);
  free(heap_, y);
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

TEST_F(CoreFaults, ABlockOfACaptureThatAnEagerStreamUsesGoesBackAtItsEnd) {
  GraphPool pool(heap_);
  Result<CaptureScope> capture = CaptureScope::begin(pool, a_, CaptureMode::relaxed);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  void* const x = allocate(heap_, kBlock, a_);
  ASSERT_TRUE(heap_.fence(x, b_).ok());
  free(heap_, x);
  EXPECT_EQ(pool.statistics().deferred, 1u);
  EXPECT_NE(allocate(heap_, kBlock, a_), x);
  const Result<Graph> graph = capture->end();
  EXPECT_TRUE(graph.ok());
  EXPECT_EQ(pool.statistics().deferred, 0u);
  EXPECT_FALSE(heap_.find(x).has_value());
  capture = CaptureScope::begin(pool, a_);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  EXPECT_EQ(allocate(heap_, kBlock, a_), x);
  free(heap_, x);
  EXPECT_EQ(pool.statistics().deferred, 0u) << "nobody eager uses the block of this capture";
  EXPECT_TRUE(capture->end().ok());
}

// What one stream freed last serves the next, however often they take turns.
TEST_F(CoreFaults, StreamsThatTakeTurnsHoldTheMemoryOfOne) {
  for (int turn = 0; turn < 12; ++turn) {
    const Stream stream = turn % 2 == 0 ? a_ : b_;
    void* const x = allocate(heap_, kBlock, stream);
    write(stream, x, kBlock);
    free(heap_, x);
    device_.finish();
  }
  EXPECT_EQ(Bytes{heap_.statistics().reserved_bytes.current}, kBlock);
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

// The block lies in pieces: each piece is what the launch uses.
TEST_F(CoreFaults, MemoryOfAStitchedBlockStaysUntilTheLaunchOfItsGraphIsDone) {
  GraphPool pool(heap_);
  Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(heap_, 8_MiB, a_));
  for (const int i : {0, 2}) free(heap_, blocks[i]);
  void* const x = allocate(heap_, 16_MiB, a_);
  EXPECT_EQ(pool.statistics().reserved_bytes, 32_MiB) << "x lies in the two gaps";
  write(a_, x, 16_MiB, 50_ms);
  for (const int i : {1, 3}) free(heap_, blocks[i]);
  Result<Graph> graph = capture->end();
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  ASSERT_TRUE(graph->launch(b_).ok());
  graph = Graph();
  free(heap_, x);
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(device_.race_count(), 0u) << "the launch runs";
  device_.finish();
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

// The addresses are what the launch uses, too. Mappings are short: rows that are idle are given up.
TEST_F(CoreFaults, ARowOfAStitchedBlockStaysUntilTheLaunchOfItsGraphIsDone) {
  for (const bool outlives_graph : {false, true}) {
    DeviceHeap heap(device_, {.most_mappings = 24});
    GraphPool pool(heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
    ASSERT_TRUE(capture.ok()) << capture.error().message();
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(allocate(heap, 8_MiB, a_));
    for (const int i : {0, 2}) free(heap, blocks[i]);
    void* const x = allocate(heap, 16_MiB, a_);
    ASSERT_EQ(heap.statistics().mappings.current, 24u) << "x lies in the two gaps";
    write(a_, x, 16_MiB, 50_ms);
    if (!outlives_graph) free(heap, x);
    Result<Graph> graph = capture->end();
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    ASSERT_TRUE(graph->launch(b_).ok());
    graph = Graph();
    if (outlives_graph) free(heap, x);
    const Result<void*> y = pool.allocate(12_MiB, c_);
    ASSERT_TRUE(y.ok()) << y.error().message();
    ASSERT_EQ(device_.race_count(), 0u) << "the launch runs";
    free(heap, *y);
    for (const int i : {1, 3}) free(heap, blocks[i]);
    device_.finish();
  }
}

// Idle memory of a pool could not go when the limit was lowered, as its last use ran still.
TEST_F(CoreFaults, IdleMemoryOfAPoolGoesWithTheNextFreeAboveTheLimit) {
  void* const beside = allocate(heap_, 1_MiB, a_);
  void* const small = allocate(heap_, 1_MiB, a_);
  const Bytes limit{heap_.statistics().reserved_bytes.current};
  GraphPool pool(heap_);
  Result<PoolBinding> binding = pool.warm_up(b_);
  ASSERT_TRUE(binding.ok());
  void* const x = allocate(heap_, kBlock, b_);
  write(b_, x, kBlock, 10_ms);
  free(heap_, x);
  binding->close();
  heap_.set_limit(limit);
  EXPECT_GT(Bytes{heap_.statistics().reserved_bytes.current}, limit);
  device_.finish();
  free(heap_, small);
  EXPECT_LE(Bytes{heap_.statistics().reserved_bytes.current}, limit);
  free(heap_, beside);
}

// As the driver does, which has the nodes of one graph where those of another were.
class ReusedNodes : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status begin_capture(Stream stream, CaptureMode mode) override {
    nodes_.clear();
    return inner_.begin_capture(stream, mode);
  }
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override {
    return named(inner_.capture_tips(stream));
  }
  Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) override {
    std::vector<GraphNode> own;
    for (const GraphNode node : nodes) own.push_back(nodes_.at(node.value - 1));
    return inner_.add_capture_dependencies(stream, own);
  }
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override {
    return named(inner_.node_dependencies(nodes_.at(node.value - 1)));
  }

 private:
  Result<std::vector<GraphNode>> named(Result<std::vector<GraphNode>> nodes) {
    if (!nodes) return nodes;
    for (GraphNode& node : *nodes) {
      const auto known = std::find_if(nodes_.begin(), nodes_.end(),
                                      [&](GraphNode each) { return each.value == node.value; });
      const auto place = static_cast<std::uint64_t>(known - nodes_.begin());
      if (known == nodes_.end()) nodes_.push_back(node);
      node.value = place + 1;
    }
    return nodes;
  }

  std::vector<GraphNode> nodes_;  // of the last capture; each is named by its place, from 1
};

TEST_F(CoreFaults, EachCaptureHasItsOwnEdgesThoughItsNodesAreNamedAsAnothers) {
  ReusedNodes device(device_);
  DeviceHeap heap(device);
  GraphPool pool(heap);
  for (int round = 0; round < 2; ++round) {
    Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
    ASSERT_TRUE(capture.ok()) << capture.error().message();
    write_after(b_, a_, allocate(heap, 1_MiB, b_), 1_MiB, 10_us);  // b_ is forked
    for (const Bytes size : {kBlock, kBlock * 2}) {
      void* const x = allocate(heap, size, a_);
      write(a_, x, size);
      free(heap, x);
      void* const y = allocate(heap, size, b_);
      EXPECT_EQ(y, x);
      write(b_, y, size);
    }
    write_after(a_, b_, allocate(heap, 1_MiB, a_), 1_MiB, 10_us);  // and joined
    Result<Graph> graph = capture->end();
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    EXPECT_TRUE(graph->launch(a_).ok());
    device_.finish();
    EXPECT_EQ(device_.race_count(), 0u) << "round " << round;
  }
}

}  // namespace
}  // namespace weir
