// Graph pools of a heap whose limit is lowered: what nobody uses goes back to the driver, wherever
// it is, as soon as the device is done with it.
#include <chrono>
#include <functional>
#include <future>

#include "tests/unit/graph_pool_fixture.h"
#include "weir/event.h"

namespace weir {
namespace {

class GraphPoolLimit : public test::GraphPools {
 protected:
  std::uint64_t reserved() const { return heap_->statistics().reserved_bytes.current; }
};

TEST_F(GraphPoolLimit, ALowerOneCallsInWhatPoolsDoNotUse) {
  GraphPool pool(*heap_);
  { small_graph(pool, a_, 64_MiB); }
  device_.finish();
  heap_->set_limit(16_MiB);
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, ALowerOneCallsThatInBesideWhatIsAtHand) {
  free(allocate(1_KiB, b_));
  GraphPool pool(*heap_);
  {
    const PoolRoute route = warm_up(pool, a_);
    free(written(64_MiB, a_));
  }
  device_.finish();
  heap_->set_limit(16_MiB);
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, AGraphThatGoesUnderALowerOneGivesItsMemoryToTheDriver) {
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_, 64_MiB);
  heap_->set_limit(16_MiB);
  EXPECT_EQ(reserved(), (64_MiB).count) << "the graph may be launched";
  graph = Graph();
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, ABlockThatOutlivesItsPoolGoesToTheDriverUnderALowerOne) {
  void* block = nullptr;
  {
    GraphPool pool(*heap_);
    const PoolRoute route = warm_up(pool, a_);
    block = allocate(64_MiB, a_);
  }
  heap_->set_limit(16_MiB);
  EXPECT_EQ(reserved(), (64_MiB).count);
  free(block);
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, UnderALowerOneARequestMayTakeWhatAPoolGivesBack) {
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_, 64_MiB);
  heap_->set_limit(32_MiB);
  graph = Graph();
  free(written(32_MiB, b_));
  EXPECT_LE(reserved(), (32_MiB).count);
}

TEST_F(GraphPoolLimit, WhatStillRanWhenItWasLoweredGoesWithTheNextFreeOfAnyBlock) {
  for (const Bytes size : {1_KiB, 3_MiB}) {
    SCOPED_TRACE(size.count);
    void* const other = allocate(size, b_);
    GraphPool pool(*heap_);
    {
      const PoolRoute route = warm_up(pool, a_);
      free(written(64_MiB, a_));
    }
    heap_->set_limit(16_MiB);
    EXPECT_GT(reserved(), (64_MiB).count) << "its work may still run";
    device_.finish();
    free(other);
    EXPECT_LE(reserved(), (16_MiB).count);
    heap_->set_limit(0_B);
  }
}

TEST_F(GraphPoolLimit, AGraphDroppedWhileItRanGivesItsMemoryWithTheNextFree) {
  void* const other = allocate(1_KiB, c_);
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_, 64_MiB);
  launch(graph, b_);
  heap_->set_limit(16_MiB);
  graph = Graph();
  EXPECT_GT(reserved(), (64_MiB).count) << "its launch may still run";
  device_.finish();
  free(other);
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, APoolOpenedUnderALowerOneKeepsNothingOverIt) {
  void* const held = allocate(64_MiB, a_);
  free(written(32_MiB, b_));
  heap_->set_limit(16_MiB);
  device_.finish();
  GraphPool pool(*heap_);
  {
    const PoolRoute route = warm_up(pool, c_);
    free(allocate(32_MiB, c_));  // what the heap had idle
  }
  free(held);
  EXPECT_LE(reserved(), (16_MiB).count);
}

// Calls back, once, in the midst of a request that creates pages.
struct AtTheFirstPage : EventSink {
  std::function<void()> call;
  void on_event(const Event& event) override {
    if (event.kind == EventKind::create && call) std::exchange(call, {})();
  }
};

TEST_F(GraphPoolLimit, OneLoweredWhileAPoolsRequestCreatesPagesIsKeptToOnceTheBlockIsFree) {
  AtTheFirstPage sink;
  heap_->start_recording(sink);
  GraphPool pool(*heap_);
  std::future<void> lowered;
  sink.call = [&] {
    lowered = std::async(std::launch::async, [&] { heap_->set_limit(32_MiB); });
    (void)lowered.wait_for(std::chrono::milliseconds(100));  // or once the request is done
  };
  {
    const PoolRoute route = warm_up(pool, a_);
    void* const block = allocate(128_MiB, a_);
    lowered.get();
    EXPECT_GE(reserved(), (128_MiB).count);
    free(block);
    EXPECT_LE(reserved(), (32_MiB).count);
    free(written(16_MiB, a_));  // the pool serves on
  }
  heap_->stop_recording(sink);
}

}  // namespace
}  // namespace weir
