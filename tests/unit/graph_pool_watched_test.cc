// Graphs that a program captures by a route, and launches and destroys itself: nobody says which
// streams they run on, or when they are done. What they use stays theirs until they are.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

constexpr Bytes kBlock = 32_MiB;
constexpr Nanoseconds kLong = 50_ms;

class GraphPoolWatched : public test::GraphPools {
 protected:
  explicit GraphPoolWatched(HeapOptions options = {}) : GraphPools(options) {}

  // A graph that writes a block of the pool's for `duration`.
  ExecutableHandle captured(GraphPool& pool, Nanoseconds duration = kLong) {
    Result<PoolRoute> route = pool.capture([this](Stream asking) { return asking == a_; });
    EXPECT_TRUE(route.ok()) << (route.ok() ? "" : route.error().message());
    EXPECT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
    void* const block = written(kBlock, a_, duration);
    if (block != nullptr) free(block);
    const GraphHandle graph = *device_.end_capture(a_);
    const ExecutableHandle executable = *device_.instantiate(graph);
    EXPECT_TRUE(device_.destroy_graph(graph).ok());
    route->close();
    return executable;
  }
  void run(ExecutableHandle executable, Stream stream) {
    EXPECT_TRUE(device_.launch_graph(executable, stream).ok());
  }
  void destroy(ExecutableHandle executable) {
    EXPECT_TRUE(device_.destroy_executable(executable).ok());
  }
  Bytes reserved() { return Bytes{heap_->statistics().reserved_bytes.current}; }
};

TEST_F(GraphPoolWatched, ARunningLaunchKeepsTheMemoryOfAGraphThatIsGone) {
  GraphPool pool(*heap_);
  const ExecutableHandle executable = captured(pool);
  run(executable, c_);  // which no allocation was ever made for
  destroy(executable);
  pool.release_graph();
  EXPECT_GE(pool.statistics().kept_bytes, kBlock);
  EXPECT_FALSE(pool.give_back_pages());
  free(written(kBlock, b_));
  expect_no_race();
  EXPECT_GE(reserved(), kBlock * 2) << "the launch has its own";

  device_.finish();
  EXPECT_TRUE(pool.give_back_pages());
  EXPECT_EQ(pool.statistics().kept_bytes, 0_B);
  free(written(kBlock * 2, b_));
  EXPECT_LE(reserved(), kBlock * 2 + device_.granularity())
      << "what was the launch's serves others";
}

TEST_F(GraphPoolWatched, WhoNeedsMemoryTakesItOnceTheLaunchIsDone) {
  GraphPool pool(*heap_);
  const ExecutableHandle executable = captured(pool);
  run(executable, c_);
  destroy(executable);
  pool.release_graph();
  device_.finish();
  free(written(kBlock, b_));
  EXPECT_LE(reserved(), kBlock + device_.granularity());
}

TEST_F(GraphPoolWatched, AGraphThatIsReleasedBeforeItIsDestroyedKeepsItsMemoryUntilThen) {
  GraphPool pool(*heap_);
  const ExecutableHandle executable = captured(pool);
  pool.release_graph();
  EXPECT_FALSE(pool.give_back_pages());
  run(executable, c_);
  free(written(kBlock, b_));
  device_.finish();
  EXPECT_FALSE(pool.give_back_pages()) << "it may be launched again";
  run(executable, c_);
  free(written(kBlock, b_));
  expect_no_race();
  device_.finish();
  destroy(executable);
  EXPECT_TRUE(pool.give_back_pages());
}

TEST_F(GraphPoolWatched, OfSeveralGraphsTheLastOneThatRunsKeepsThePoolsMemory) {
  GraphPool pool(*heap_);
  const ExecutableHandle one = captured(pool, 1_ms), other = captured(pool);
  run(one, c_);
  run(other, c_);
  for (const ExecutableHandle executable : {one, other}) {
    destroy(executable);
    pool.release_graph();
  }
  device_.advance(2_ms);
  EXPECT_FALSE(pool.give_back_pages());
  free(written(kBlock, b_));
  expect_no_race();
  device_.finish();
  EXPECT_TRUE(pool.give_back_pages());
}

TEST_F(GraphPoolWatched, TrimWaitsForLaunchesWhereItIsToWait) {
  GraphPool pool(*heap_);
  free(allocate(1_MiB, c_));
  const ExecutableHandle executable = captured(pool);
  run(executable, c_);
  destroy(executable);
  pool.release_graph();
  EXPECT_TRUE(heap_->trim(0_B, Trim::at_once).ok());
  EXPECT_GE(reserved(), kBlock);
  EXPECT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
}

TEST_F(GraphPoolWatched, OfGraphsThatLeakTheMemoryComesBackWhereTheHostWaits) {
  GraphPool pool(*heap_);
  free(allocate(1_MiB, b_));
  Result<PoolRoute> route = pool.capture([this](Stream asking) { return asking == a_; });
  ASSERT_TRUE(route.ok());
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  free(written(kBlock, a_, kLong));
  const GraphHandle leaked = *device_.end_capture(a_);
  route->close();
  const ExecutableHandle executable = *device_.instantiate(leaked);
  run(executable, b_);
  destroy(executable);
  pool.release_graph();
  EXPECT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  EXPECT_GE(reserved(), kBlock) << "the graph is there, and might be launched";
  EXPECT_GE(device_.now(), kLong);

  const ExecutableHandle again = *device_.instantiate(leaked);
  run(again, b_);
  destroy(again);
  heap_->assume_graphs_leak();
  EXPECT_TRUE(heap_->trim(0_B, Trim::at_once).ok());
  EXPECT_GE(reserved(), kBlock) << "it runs";
  const Nanoseconds before = device_.now();
  EXPECT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  EXPECT_GE(device_.now(), before + 25_ms);
  EXPECT_EQ(reserved(), 0_B);
  ASSERT_TRUE(device_.destroy_graph(leaked).ok());
}

TEST_F(GraphPoolWatched, ACaptureThatIsThrownAwayKeepsNothing) {
  GraphPool pool(*heap_);
  Result<PoolRoute> route = pool.capture([this](Stream asking) { return asking == a_; });
  ASSERT_TRUE(route.ok());
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  free(written(kBlock, a_));
  ASSERT_TRUE(device_.destroy_graph(*device_.end_capture(a_)).ok());
  route->close(/*keep=*/false);
  EXPECT_EQ(pool.statistics().kept_bytes, 0_B);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0_B) << "it went to the device heap";
}

TEST_F(GraphPoolWatched, GraphsThatComeAndGoWhileTheyRunDoNotAddUp) {
  Bytes most;
  for (int i = 0; i < 200; ++i) {
    GraphPool pool(*heap_);
    const ExecutableHandle executable = captured(pool, 3_ms);
    run(executable, i % 2 == 0 ? b_ : c_);
    destroy(executable);
    pool.release_graph();
    device_.advance(2_ms);
    expect_no_race();
    most = std::max(most, reserved());
  }
  EXPECT_LE(most, (kBlock + device_.granularity()) * 3) << "two run, and one comes";
  device_.finish();
  EXPECT_TRUE(heap_->trim().ok());
  EXPECT_EQ(reserved(), 0_B);
}

TEST_F(GraphPoolWatched, OneThatCanNotBeWatchedIsRefusedAndNothingIsLost) {
  GraphPool pool(*heap_);
  device_.fail(DeviceCall::retain, 1);
  Result<PoolRoute> route = pool.capture([this](Stream asking) { return asking == a_; });
  ASSERT_TRUE(route.ok());
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  expect_error(heap_->allocate(kBlock, a_), ErrorCode::device, "retain");
  free(written(kBlock, a_));
  ASSERT_TRUE(device_.destroy_graph(*device_.end_capture(a_)).ok());
  route->close(/*keep=*/false);
  const ExecutableHandle executable = captured(pool);
  destroy(executable);
  pool.release_graph();
  EXPECT_EQ(pool.statistics().reserved_bytes, 0_B);
}

TEST_F(GraphPoolWatched, GraphsThatWeirLaunchesAreNotWatched) {
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_);
  launch(graph, a_);
  EXPECT_EQ(device_.calls(DeviceCall::retain), 0u);
}

class GraphPoolWatchedUnderALimit : public GraphPoolWatched {
 protected:
  GraphPoolWatchedUnderALimit() : GraphPoolWatched({.limit = 40_MiB}) {}
};

TEST_F(GraphPoolWatchedUnderALimit, RatherThanRunOutOfMemoryTheHostWaitsForTheLaunch) {
  GraphPool pool(*heap_);
  free(allocate(1_MiB, c_));
  const ExecutableHandle executable = captured(pool);
  run(executable, c_);
  destroy(executable);
  pool.release_graph();
  void* const block = written(kBlock, b_);
  ASSERT_NE(block, nullptr);
  free(block);
  EXPECT_GE(device_.now(), kLong);
}

}  // namespace
}  // namespace weir
