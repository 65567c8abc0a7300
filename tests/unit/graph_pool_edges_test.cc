// SPDX-License-Identifier: Apache-2.0
// Graph pools where things happen in an order that no plan has: graphs, streams and pools that go
// while a capture goes on, captures that overlap, and captures that Weir knows nothing of.

#include "tests/property/history.h"
#include "tests/unit/core_test_access.h"
#include "tests/unit/graph_pool_fixture.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class GraphPoolEdges : public test::GraphPools {
 protected:
  using GraphPools::GraphPools;
  // A block that b used, too, freed in a capture; the driver refuses all that the free asks for.
  void* freed_in_vain(GraphPool& pool) {
    void* const block = written(4_MiB, a_);
    EXPECT_TRUE(heap_->record_stream(block, b_).ok());
    const CaptureScope capture = begin(pool, a_);
    free(block);
    device_.fail(DeviceCall::record, 1);
    device_.fail(DeviceCall::record_context, 1);
    return block;
  }
};

TEST_F(GraphPoolEdges, TheLastGraphMayGoDuringACaptureThatIsThrownAway) {
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_, 64_MiB);
  {
    const CaptureScope capture = begin(pool, a_);
    graph = Graph();
  }
  EXPECT_EQ(pool.statistics().graphs, 0u);
  EXPECT_EQ(pool.statistics().kept_bytes, 0_B);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0_B) << "the device heap's again";
}

TEST_F(GraphPoolEdges, AGraphThatGoesWhileItRunsAndACaptureGoesOnKeepsItsMemoryUntilItIsDone) {
  GraphPool pool(*heap_);
  Graph graph;
  {
    CaptureScope capture = begin(pool, a_);
    free(written(64_MiB, a_, 10_ms));
    graph = end(capture);
  }
  {
    const CaptureScope capture = begin(pool, a_);
    launch(graph, b_);
    graph = Graph();
  }
  EXPECT_EQ(pool.statistics().reserved_bytes, 64_MiB) << "the launch still runs";
  free(written(64_MiB, a_));
  device_.finish();
  EXPECT_TRUE(heap_->trim(0_B).ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

TEST_F(GraphPoolEdges, BlocksOfAStreamThatIsGoneAreFencedAndFreedWhileARouteIsOpen) {
  const Stream gone = device_.new_stream();
  void* const own = written(4_MiB, gone);
  void* const used = written(4_MiB, a_);
  order(a_, gone);
  read(gone, used);
  ASSERT_TRUE(heap_->retire(gone).ok());
  ASSERT_TRUE(device_.destroy_stream(gone).ok());
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  EXPECT_TRUE(heap_->fence(used, gone).ok());
  EXPECT_TRUE(heap_->record_stream(used, gone).ok());
  free(own);
  EXPECT_EQ(heap_->statistics().live_blocks.current, 1u) << "no capture uses it";
  free(used);
  const Graph graph = end(capture);
}

TEST_F(GraphPoolEdges, ACaptureMayOutliveItsPool) {
  auto pool = std::make_unique<GraphPool>(*heap_);
  CaptureScope capture = begin(*pool, a_);
  void* const block = written(4_MiB, a_);
  pool.reset();
  free(block);
  Graph graph = end(capture);
  expect_error(capture.end(), ErrorCode::invalid_argument, "has ended already");
  GraphPool other(*heap_);
  EXPECT_GT(device_.physical_bytes(), 0_B) << "the graph's";
  launch(graph, a_);
}

TEST_F(GraphPoolEdges, AGraphThatWasMovedFromHasNoHandles) {
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_);
  Graph other = std::move(graph);
  EXPECT_EQ(graph.graph(), GraphHandle{});  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(graph.executable(), ExecutableHandle{});
  expect_error(graph.launch(a_), ErrorCode::invalid_argument, "there is no graph");
  graph = std::move(other);
  EXPECT_EQ(other.graph(), GraphHandle{});  // NOLINT(bugprone-use-after-move)
  launch(graph, a_);
}

TEST_F(GraphPoolEdges, AnEndThatFailsDestroysNoGraph) {
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  order(a_, b_);
  touch(b_, Reads(nullptr, 0_B), 1_us);
  expect_error(capture.end(), ErrorCode::capture, "is not joined");
  EXPECT_EQ(device_.calls(DeviceCall::destroy_graph), 0u);
}

TEST_F(GraphPoolEdges, ACaptureThatWeirKnowsNothingOfIsNotBroken) {
  free(written(32_MiB, b_, 100_ms));
  GraphPool pool(*heap_);
  ASSERT_TRUE(device_.begin_capture(b_, CaptureMode::relaxed).ok());
  touch(b_, Reads(nullptr, 0_B), 1_us);
  const Graph graph = small_graph(pool, a_);
  const Result<GraphHandle> others = device_.end_capture(b_);
  ASSERT_TRUE(others.ok()) << others.error().message();
  EXPECT_TRUE(device_.destroy_graph(*others).ok());
  free(written(32_MiB, c_));
}

TEST_F(GraphPoolEdges, ACaptureMayBeginWhileAStreamWithEagerWorkHasJoinedAnother) {
  GraphPool first(*heap_), second(*heap_);
  CaptureScope one = begin(first, a_);
  free(written(32_MiB, b_, 100_ms));
  order(a_, b_);
  CaptureScope two = begin(second, c_);
  free(written(32_MiB, c_));
  const Graph of_two = end(two);
  const Graph of_one = end(one);
}

TEST_F(GraphPoolEdges, OfCapturesThatOverlapOnlyThoseOfItsTimeKeepABlock) {
  GraphPool first(*heap_), second(*heap_);
  void* const freed = written(32_MiB, a_);
  void* const used = written(32_MiB, c_);
  CaptureScope one = begin(first, a_);
  read(a_, used);
  ASSERT_TRUE(heap_->fence(used, a_).ok());
  free(freed);
  free(used);
  CaptureScope two = begin(second, b_);
  EXPECT_EQ(heap_->statistics().live_blocks.current, 2u);
  Graph of_one = end(one);
  EXPECT_EQ(heap_->statistics().live_blocks.current, 0u);
  void* const later = written(32_MiB, b_);
  EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  free(later);
  const Graph of_two = end(two);
}

TEST_F(GraphPoolEdges, ABlockWhoseUserIsStillCapturedGoesBackWhenThatCaptureEnds) {
  GraphPool first(*heap_), second(*heap_);
  void* of_pool = nullptr;
  {
    const PoolBinding binding = warm_up(first, a_);
    of_pool = written(4_MiB, a_);
  }
  void* const of_heap = written(4_MiB, a_);
  for (void* const block : {of_pool, of_heap}) {
    order(a_, b_);
    read(b_, block);
    ASSERT_TRUE(heap_->record_stream(block, b_).ok());
  }
  CaptureScope two = begin(second, b_);
  CaptureScope one = begin(first, a_);
  free(of_pool);
  free(of_heap);
  const Graph of_one = end(one);
  expect_error(heap_->deallocate(of_pool), ErrorCode::unknown_pointer, "deallocate");
  const Graph of_two = end(two);
  EXPECT_EQ(heap_->statistics().live_blocks.current, 0u);
}

TEST_F(GraphPoolEdges, AFreeThatTheDriverRefusedAtTheEndOfACaptureIsMadeUpFor) {
  GraphPool pool(*heap_);
  void* const block = written(4_MiB, a_);
  ASSERT_TRUE(heap_->record_stream(block, b_).ok());
  {
    const CaptureScope capture = begin(pool, a_);
    free(block);
    device_.fail(DeviceCall::record, 1);
  }
  // It went back behind the work of all streams: what its own user does can't be told apart.
  EXPECT_EQ(heap_->statistics().live_blocks.current, 0u);
  EXPECT_EQ(device_.calls(DeviceCall::record_context), 1u);
  expect_error(heap_->deallocate(block), ErrorCode::unknown_pointer, "deallocate");
}

TEST_F(GraphPoolEdges, AFreeThatTheDriverRefusesAltogetherIsTriedAgain) {
  GraphPool pool(*heap_);
  void* const block = freed_in_vain(pool);
  EXPECT_EQ(heap_->statistics().live_blocks.current, 1u);
  expect_error(heap_->deallocate(block), ErrorCode::unknown_pointer, "deallocate");
  EXPECT_TRUE(heap_->trim(0_B).ok());
  EXPECT_EQ(heap_->statistics().live_blocks.current, 0u);
}

// Then nothing is deferred any more, and the fast paths are open again.
TEST_F(GraphPoolEdges, ThatFreeIsMadeUpForByTheNextRequest) {
  GraphPool pool(*heap_);
  for (const bool in_pool : {false, true}) {
    ASSERT_TRUE(heap_->trim(0_B).ok());
    const std::uint64_t records = device_.calls(DeviceCall::record_context);
    freed_in_vain(pool);
    ASSERT_EQ(device_.calls(DeviceCall::record_context), records + 1);
    ASSERT_EQ(heap_->statistics().live_blocks.current, 1u);
    StreamHeap& heap = TestAccess::stream_heap(*heap_, 0);
    ASSERT_NE(TestAccess::fast_stream(heap), a_.id) << "each free asks whether it is deferred";
    void* const next =
        in_pool ? pool.allocate(1_KiB, b_).value() : heap_->allocate(1_KiB, b_).value();
    EXPECT_EQ(heap_->statistics().live_blocks.current, 1u) << "the new one";
    EXPECT_EQ(TestAccess::fast_stream(heap), a_.id);
    EXPECT_TRUE(heap_->deallocate(next).ok());
  }
}

TEST_F(GraphPoolEdges, ABlockThatAnEagerStreamIsSaidToUseServesNoOtherInTheCapture) {
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  for (const Bytes bytes : {64_KiB, 4_MiB}) {
    void* const fenced = written(bytes, a_);
    ASSERT_TRUE(heap_->fence(fenced, c_).ok());
    free(fenced);
    free(written(bytes, a_));
    void* const recorded = written(bytes, a_);
    ASSERT_TRUE(heap_->record_stream(recorded, c_).ok());
    free(recorded);
    free(written(bytes, a_));
  }
  EXPECT_EQ(pool.statistics().deferred, 4u);
  Graph graph = end(capture);
  EXPECT_EQ(pool.statistics().live_blocks, 0u);
  launch(graph, a_);
}

TEST_F(GraphPoolEdges, NothingIsAllocatedInAPoolForARetiredStream) {
  const Stream gone = device_.new_stream();
  GraphPool pool(*heap_);
  const PoolBinding binding = warm_up(pool, gone);
  free(written(4_MiB, gone));
  ASSERT_TRUE(heap_->retire(gone).ok());
  expect_error(heap_->allocate(4_MiB, gone), ErrorCode::invalid_argument, "was retired");
}

// Else each pool that goes at such a moment leaves one behind.
TEST_F(GraphPoolEdges, AnEventThatTheDeviceRefusesToDestroyStaysTheHeaps) {
  {
    GraphPool pool(*heap_);
    {
      const PoolBinding binding = warm_up(pool, a_);
      void* const block = written(4_MiB, a_);
      EXPECT_TRUE(heap_->fence(block, b_).ok());
      free(block);
    }
    device_.finish();
    device_.fail(DeviceCall::destroy_event, 1);
  }
  EXPECT_GT(device_.live().events, 0u);
  EXPECT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  EXPECT_EQ(device_.live().events, 0u);
}

TEST_F(GraphPoolEdges, ALaunchIntoACaptureIsRefusedAndDoesNotBreakIt) {
  GraphPool first(*heap_), second(*heap_);
  Graph graph = small_graph(first, a_);
  {
    const PoolBinding binding = warm_up(first, c_);
    free(written(1_MiB, c_, 10_ms));
  }
  CaptureScope capture = begin(second, a_);
  free(written(1_MiB, a_));
  expect_error(graph.launch(a_), ErrorCode::capture, "is being captured");
  const Graph other = end(capture);
  launch(graph, a_);
}

TEST_F(GraphPoolEdges, ManyPoolsOfManyStreamsLeaveAddressesForMore) {
  std::vector<Stream> streams(20);
  std::generate(streams.begin(), streams.end(), [&] { return device_.new_stream(); });
  std::vector<std::unique_ptr<GraphPool>> pools;
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    pools.push_back(std::make_unique<GraphPool>(*heap_));
    for (const Stream stream : streams) {
      const PoolBinding binding = warm_up(*pools.back(), stream);
      if (void* const block = allocate(2_MiB, stream)) free(block);
    }
  }
  EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  if (void* const large = allocate(8_GiB, b_)) free(large);
}

class GraphPoolPressure : public GraphPoolEdges {
 protected:
  GraphPoolPressure() : GraphPoolEdges({.limit = 64_MiB}) {}
};

TEST_F(GraphPoolPressure, AWarmUpGetsWhatTheDeviceHeapIsAboutToBeDoneWith) {
  GraphPool pool(*heap_);
  free(written(48_MiB, a_, 10_ms));
  const PoolBinding binding = warm_up(pool, a_);
  free(written(48_MiB, a_));
  EXPECT_EQ(device_.physical_peak(), 48_MiB);
}

TEST_F(GraphPoolPressure, TheDeviceHeapGetsWhatAPoolIsAboutToBeDoneWith) {
  GraphPool pool(*heap_);
  {
    const PoolBinding binding = warm_up(pool, a_);
    free(written(48_MiB, a_, 10_ms));
  }
  free(written(48_MiB, a_));
  EXPECT_EQ(device_.physical_peak(), 48_MiB);
}

TEST_F(GraphPoolPressure, ACaptureGetsWhatIsFreedEagerlyWhileItGoesOn) {
  GraphPool pool(*heap_);
  void* const eager = written(48_MiB, b_, 10_ms);
  CaptureScope capture = begin(pool, a_);
  free(eager);
  free(written(48_MiB, a_));
  const Graph graph = end(capture);
}

// As another thread would, at the moment at which a capture has begun and its id is not known yet.
class AllocatesAsACaptureBegins final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status begin_capture(Stream stream, CaptureMode mode) override {
    Status begun = ForwardingDevice::begin_capture(stream, mode);
    block = heap->allocate(1_MiB, stream);
    return begun;
  }
  DeviceHeap* heap = nullptr;
  Result<void*> block = nullptr;
};

TEST(GraphPoolBegin, ARequestAsTheCaptureBeginsIsTheCaptures) {
  SimDevice sim;
  AllocatesAsACaptureBegins device(sim);
  const Stream stream = sim.new_stream();
  DeviceHeap heap(device);
  device.heap = &heap;
  GraphPool pool(heap);
  Result<CaptureScope> capture = CaptureScope::begin(pool, stream);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  ASSERT_TRUE(device.block.ok()) << device.block.error().message();
  EXPECT_EQ(pool.statistics().live_blocks, 1u);
  EXPECT_TRUE(heap.deallocate(*device.block).ok());
  EXPECT_TRUE(capture->end().ok());
}

}  // namespace
}  // namespace weir
