// SPDX-License-Identifier: Apache-2.0
// Captures with a pool: blocks of other capture epochs freed meanwhile, errors, and faults at every
// call.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class GraphPoolCapture : public test::GraphPools {
 protected:
  using GraphPools::GraphPools;
};

TEST_F(GraphPoolCapture, ABlockOfAnEarlierTimeFreedMeanwhileGoesBackAtTheEnd) {
  GraphPool pool(*heap_);
  void* earlier = nullptr;
  {
    const PoolBinding binding = warm_up(pool, a_);
    earlier = written(32_MiB, a_, 5_ms);
  }
  CaptureScope capture = begin(pool, a_);
  free(earlier);
  EXPECT_EQ(pool.statistics().deferred, 1u);
  EXPECT_EQ(pool.statistics().live_blocks, 1u);
  expect_error(heap_->deallocate(earlier), ErrorCode::unknown_pointer, "deallocate");
  EXPECT_EQ(pool.statistics().deferred, 1u);
  EXPECT_THAT(heap_->validate(), IsEmpty());
  void* const other = written(32_MiB, a_);
  EXPECT_GE(pool.statistics().reserved_bytes, 64_MiB) << "the block was given out meanwhile";
  read(a_, earlier);
  free(other);
  Graph graph = end(capture);
  EXPECT_EQ(pool.statistics().deferred, 0u);
  EXPECT_EQ(pool.statistics().live_blocks, 0u);
  EXPECT_EQ(wrong_reads(graph), 0u);
  expect_error(heap_->deallocate(earlier), ErrorCode::unknown_pointer, "deallocate");
}

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

TEST_F(GraphPoolCapture, AScopeThrownAwayLeavesThePoolAsItWas) {
  GraphPool pool(*heap_);
  void* block = nullptr;
  {
    CaptureScope capture = begin(pool, a_);
    block = written(32_MiB, a_);
    free(written(64_MiB, a_));
  }
  EXPECT_EQ(device_.capture_info(a_)->status, CaptureInfo::Status::none);
  EXPECT_EQ(device_.live().graphs, 0u);
  EXPECT_EQ(pool.statistics().graphs, 0u);
  EXPECT_EQ(pool.statistics().kept_bytes, 0_B);
  EXPECT_EQ(pool.statistics().live_blocks, 1u);
  EXPECT_THAT(heap_->validate(), IsEmpty());
  free(block);
  Graph graph = small_graph(pool, a_);
  launch(graph, a_);
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

// Found by the soak: pages of the device heap that were larger than the room under the pool's limit
// were taken over, and a pool over its limit could sleep, and never wake.
TEST_F(GraphPoolCapture, ThePoolsLimitHoldsForIdlePagesOfTheDeviceHeapToo) {
  free(written(200_MiB, a_));
  device_.finish();
  GraphPool pool(*heap_, {.limit = 22_MiB, .memory = {}, .tag = "graphs"});
  CaptureScope capture = begin(pool, a_);
  std::vector<void*> blocks;
  for (Result<void*> block = heap_->allocate(3_MiB, a_); block.ok();
       block = heap_->allocate(3_MiB, a_)) {
    blocks.push_back(*block);
    EXPECT_TRUE(device_.launch(a_, Writes(*block, 3_MiB), 1_us).ok());
  }
  EXPECT_GE(blocks.size(), 6u);
  Graph graph = end(capture);
  EXPECT_LE(pool.statistics().peak_reserved_bytes, 22_MiB);
  launch(graph, a_);
  SleepOptions tag;
  tag.tags = {"graphs"};
  EXPECT_TRUE(heap_->tags().sleep(tag).ok());
  const Result<SleepReport> woke = heap_->tags().wake({.tags = tag.tags, .keep_host = {}});
  EXPECT_TRUE(woke.ok()) << (woke.ok() ? "" : woke.error().message());
  launch(graph, a_);
  for (void* const block : blocks) EXPECT_TRUE(heap_->deallocate(block).ok());
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
struct FaultAt {
  DeviceCall call;
};
class GraphPoolFaults : public GraphPoolCapture, public testing::WithParamInterface<FaultAt> {
 protected:
  // Of a block that could be had.
  void drop(const Result<void*>& block) {
    if (block.ok() && heap_->deallocate(*block).ok()) return;
    if (block.ok()) left_.push_back(*block);
  }
  template <class Outcome>
  bool noted(const Outcome& outcome) {
    all_well_ = all_well_ && outcome.ok();
    if (outcome.ok()) return true;
    EXPECT_THAT(outcome.error().message(), HasSubstr(std::string(name_of(GetParam().call))));
    return false;
  }
  void go(GraphPool& pool) {
    Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
    if (!noted(capture)) return;
    order(a_, b_);
    const Result<void*> first = heap_->allocate(32_MiB, a_);
    if (noted(first)) (void)device_.launch(a_, Writes(*first, 32_MiB), 1_us);
    const Result<void*> shared = heap_->allocate(16_MiB, b_);
    if (noted(shared)) {
      (void)device_.launch(b_, Writes(*shared, 16_MiB), 1_us);
      (void)noted(heap_->fence(*shared, a_));
    }
    drop(first);
    drop(shared);
    const Result<void*> second = heap_->allocate(40_MiB, b_);
    if (noted(second)) (void)device_.launch(b_, Writes(*second, 40_MiB), 1_us);
    drop(second);
    order(b_, a_);
    Result<Graph> graph = capture->end();
    if (noted(graph)) noted(graph->launch(c_));
  }
  // The last fault was not reached by the program: has it meet something else.
  void spend_fault(GraphPool& pool, std::uint64_t at) {
    for (int i = 0; i < 100 && device_.calls(GetParam().call) < at; ++i) {
      EXPECT_TRUE(heap_->trim(0_B).ok());
      go(pool);
      device_.finish();
    }
    EXPECT_GE(device_.calls(GetParam().call), at);
    if (device_.capture_info(a_)->status != CaptureInfo::Status::none) {
      EXPECT_TRUE(device_.destroy_graph(*device_.end_capture(a_)).ok());
    }
    for (void* const block : std::exchange(left_, {})) EXPECT_TRUE(heap_->deallocate(block).ok());
  }
  std::vector<void*> left_;
  bool all_well_ = true;
};

TEST_P(GraphPoolFaults, AtEachCallAreErrorsThatLeaveEverythingWhole) {
  const DeviceCall call = GetParam().call;
  std::uint64_t refused = 0;
  for (std::uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 500u);
    const std::uint64_t before = device_.calls(call);
    all_well_ = true;
    {
      GraphPool pool(*heap_);
      device_.fail(call, nth);
      go(pool);
      const bool fired = device_.calls(call) >= before + nth;
      if (!fired) {
        EXPECT_GT(nth, 1u) << "the program makes no such call";
        EXPECT_TRUE(all_well_);
        spend_fault(pool, before + nth);
        break;
      }
      refused += all_well_ ? 0 : 1;
      // Where the end of the capture was refused, the driver still captures.
      if (device_.capture_info(a_)->status != CaptureInfo::Status::none) {
        EXPECT_EQ(call, DeviceCall::end_capture);
        if (const Result<GraphHandle> graph = device_.end_capture(a_)) {
          EXPECT_TRUE(device_.destroy_graph(*graph).ok());
        }
      }
      for (void* const block : std::exchange(left_, {})) EXPECT_TRUE(heap_->deallocate(block).ok());
      EXPECT_THAT(heap_->validate(), IsEmpty()) << name_of(call) << " " << nth;
      device_.finish();
      all_well_ = true;
      go(pool);
      EXPECT_TRUE(all_well_) << "the next capture, after " << name_of(call) << " " << nth;
      device_.finish();
    }
    EXPECT_TRUE(heap_->trim(0_B).ok());
    EXPECT_EQ(device_.live().graphs, 0u) << name_of(call) << " " << nth;
    EXPECT_EQ(device_.live().executables, 0u) << name_of(call) << " " << nth;
    expect_no_race();
  }
  EXPECT_GT(refused, 0u) << "nothing came of it";
}
INSTANTIATE_TEST_SUITE_P(
    All, GraphPoolFaults,
    testing::Values(FaultAt{DeviceCall::begin_capture}, FaultAt{DeviceCall::end_capture},
                    FaultAt{DeviceCall::instantiate}, FaultAt{DeviceCall::launch_graph},
                    FaultAt{DeviceCall::capture_info}, FaultAt{DeviceCall::capture_tips},
                    FaultAt{DeviceCall::add_capture_dependencies},
                    FaultAt{DeviceCall::node_dependencies}, FaultAt{DeviceCall::create},
                    FaultAt{DeviceCall::map}, FaultAt{DeviceCall::set_access}),
    [](const auto& info) { return std::string(name_of(info.param.call)); });

}  // namespace
}  // namespace weir
