// SPDX-License-Identifier: Apache-2.0
// Captures with a pool: memory of streams that are captured elsewhere, and errors.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

using testing::HasSubstr;

class GraphPoolCapture : public test::GraphPools {
 protected:
  using GraphPools::GraphPools;
};

// Nothing can be learnt of the block's stream just now: its memory stays free, and out of the
// graph.
TEST_F(GraphPoolCapture, MemoryOfAStreamCapturedElsewhereKeepsNoCaptureFromBeginning) {
  GraphPool pool(*heap_), other(*heap_);
  void* block = nullptr;
  {
    const PoolBinding binding = warm_up(pool, a_);
    block = written(2_MiB, a_, 10_ms);
  }
  CaptureScope elsewhere = begin(other, a_);
  free(block);
  CaptureScope capture = begin(pool, b_);
  void* const one = written(2_MiB, b_);
  EXPECT_NE(one, block);
  free(one);
  Graph graph = end(capture);
  Graph empty = end(elsewhere);
  launch(graph, c_);
  Graph next = small_graph(pool, b_, 2_MiB);
  launch(next, c_);
}

TEST_F(GraphPoolCapture, ASecondCaptureIntoThePoolIsRefused) {
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  expect_error(CaptureScope::begin(pool, b_), ErrorCode::invalid_argument, "graph pool 1");
  expect_error(pool.capture([](Stream) { return true; }), ErrorCode::invalid_argument,
               "graph pool 1");
  expect_error(pool.warm_up(b_), ErrorCode::invalid_argument, "graph pool 1");
  EXPECT_EQ(device_.capture_info(b_)->status, CaptureInfo::Status::none);
  free(written(1_MiB, a_));
  Graph graph = end(capture);
  expect_error(capture.end(), ErrorCode::invalid_argument, "ended already");
  launch(graph, b_);
}

TEST_F(GraphPoolCapture, AnEmptyFilterAndAnEmptyGraphAreRefused) {
  GraphPool pool(*heap_);
  expect_error(pool.warm_up(StreamFilter()), ErrorCode::invalid_argument, "empty filter");
  expect_error(Graph().launch(a_), ErrorCode::invalid_argument, "no graph");
}

TEST_F(GraphPoolCapture, ACaptureWithoutAPoolIsToldSoWhileARouteIsOpen) {
  GraphPool pool(*heap_);
  const PoolBinding binding = warm_up(pool, b_);
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  expect_error(heap_->allocate(1_MiB, a_), ErrorCode::capture, "no graph pool serves its capture");
  ASSERT_TRUE(device_.launch(a_, 1_us).ok()) << "the capture goes on";
  const Result<GraphHandle> graph = device_.end_capture(a_);
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(device_.destroy_graph(*graph).ok());
}

TEST_F(GraphPoolCapture, ACaptureThatTheDriverDoesNotEndGoesOnAndMayBeEndedAgain) {
  GraphPool pool(*heap_);
  Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
  ASSERT_TRUE(capture.ok());
  device_.fail(DeviceCall::end_capture, 1);
  const Result<Graph> refused = capture->end();
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("goes on"));
  void* const block = allocate(1_MiB, a_);  // the pool's still
  write(a_, block);
  EXPECT_EQ(heap_->find(block)->pool, pool.id());
  free(block);
  Result<Graph> graph = capture->end();
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_TRUE(graph->launch(a_).ok());
  EXPECT_FALSE(capture->end().ok());
}

}  // namespace
}  // namespace weir
