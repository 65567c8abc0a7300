// Graph pools where things happen in an order that no plan has: graphs, streams and pools that go
// while a capture goes on, captures that overlap, and captures that Weir knows nothing of.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

class GraphPoolEdges : public test::GraphPools {
 protected:
  using GraphPools::GraphPools;
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

}  // namespace
}  // namespace weir
