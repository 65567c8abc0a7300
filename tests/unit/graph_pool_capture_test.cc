// SPDX-License-Identifier: Apache-2.0
// Captures with a pool: memory of streams that are captured elsewhere, errors, and faults at
// every call.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

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

// A program that meets each of the calls, which fails at one of them.
class GraphPoolFaults : public GraphPoolCapture, public testing::WithParamInterface<DeviceCall> {
 protected:
  template <class Outcome>
  bool noted(const Outcome& outcome) {
    if (outcome.ok()) return true;
    all_well_ = false;
    EXPECT_THAT(outcome.error().message(), HasSubstr(std::string(name_of(GetParam()))));
    return false;
  }
  // Nullptr: there is none.
  void* try_written(Bytes bytes, Stream stream) {
    const Result<void*> block = heap_->allocate(bytes, stream);
    if (!noted(block)) return nullptr;
    touch(stream, Writes(*block, bytes), 1_us);
    return *block;
  }
  void drop(void* block) {
    if (block != nullptr && !noted(heap_->deallocate(block))) left_.push_back(block);
  }
  // Is all well?
  bool go(GraphPool& pool) {
    all_well_ = true;
    Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
    if (!noted(capture)) return false;
    order(a_, b_);
    void* const first = try_written(32_MiB, a_);
    void* const shared = try_written(16_MiB, b_);
    if (shared != nullptr) noted(heap_->fence(shared, a_));
    drop(first);
    drop(shared);
    drop(try_written(40_MiB, b_));
    order(b_, a_);
    Result<Graph> graph = capture->end();
    if (noted(graph)) noted(graph->launch(c_));
    return all_well_;
  }
  bool all_well_ = true;
  std::vector<void*> left_;
};

TEST_P(GraphPoolFaults, AtEachCallAreErrorsThatLeaveEverythingWhole) {
  std::uint64_t nth = 1, refused = 0;
  for (bool hit = true; hit && !HasFailure(); ++nth) {
    SCOPED_TRACE(nth);
    EXPECT_TRUE(heap_->trim(0_B).ok());
    GraphPool pool(*heap_);
    device_.fail(GetParam(), nth);
    const bool well = go(pool);
    hit = device_.forget_faults() == 0;
    EXPECT_TRUE(hit || well);
    refused += well ? 0 : 1;
    EXPECT_EQ(device_.capture_info(a_)->status, CaptureInfo::Status::none);
    for (void* const block : std::exchange(left_, {})) free(block);
    EXPECT_THAT(heap_->validate(), IsEmpty());
    device_.finish();
    EXPECT_TRUE(go(pool)) << "the next capture";
    device_.finish();
  }
  EXPECT_GT(refused, 0u) << "nothing came of it";
}
INSTANTIATE_TEST_SUITE_P(All, GraphPoolFaults,
                         testing::Values(DeviceCall::begin_capture, DeviceCall::end_capture,
                                         DeviceCall::instantiate, DeviceCall::launch_graph,
                                         DeviceCall::capture_info, DeviceCall::capture_tips,
                                         DeviceCall::add_capture_dependencies,
                                         DeviceCall::node_dependencies, DeviceCall::create,
                                         DeviceCall::map, DeviceCall::set_access),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace weir
