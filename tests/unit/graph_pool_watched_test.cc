// SPDX-License-Identifier: Apache-2.0
// Graphs that a program captures by a binding, and launches and destroys itself: nobody says which
// streams they run on, or when they are done. What they use stays theirs until they are.
#include <chrono>

#include "tests/unit/graph_pool_fixture.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

constexpr Bytes kBlock = 32_MiB;
constexpr Nanoseconds kLong = 50_ms;

class GraphPoolWatched : public test::GraphPools {
 protected:
  explicit GraphPoolWatched(HeapOptions options = {}) : GraphPools(options) {}

  // A binding for captures of a_.
  PoolBinding binding_of(GraphPool& pool) {
    Result<PoolBinding> binding = pool.capture([this](Stream asking) { return asking == a_; });
    EXPECT_TRUE(binding.ok()) << (binding.ok() ? "" : binding.error().message());
    return *std::move(binding);
  }
  void begin() { EXPECT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok()); }
  ExecutableHandle end() {
    const GraphHandle graph = *device_.end_capture(a_);
    const ExecutableHandle executable = *device_.instantiate(graph);
    EXPECT_TRUE(device_.destroy_graph(graph).ok());
    return executable;
  }
  // A graph that writes a block of the pool's for `duration`.
  ExecutableHandle captured(GraphPool& pool, Nanoseconds duration = kLong) {
    PoolBinding binding = binding_of(pool);
    begin();
    free(written(kBlock, a_, duration));
    const ExecutableHandle executable = end();
    binding.close();
    return executable;
  }
  void run(ExecutableHandle executable, Stream stream) {
    EXPECT_TRUE(device_.launch_graph(executable, stream).ok());
  }
  void destroy(ExecutableHandle executable) {
    EXPECT_TRUE(device_.destroy_executable(executable).ok());
  }
  // As PyTorch does where the last reference goes while the graph runs.
  void run_and_drop(GraphPool& pool, ExecutableHandle executable, Stream stream) {
    run(executable, stream);
    destroy(executable);
    pool.release_graph();
  }
  Bytes reserved() { return Bytes{heap_->statistics().reserved_bytes.current}; }
};

class GraphPoolWatchedFixed : public GraphPoolWatched {
 protected:
  GraphPoolWatchedFixed() : GraphPoolWatched({.addresses = Addresses::fixed}) {}
};

TEST_F(GraphPoolWatchedFixed, AGraphIsGoneOnlyOnceTheHostWaitedForIt) {
  GraphPool pool(*heap_);
  const ExecutableHandle executable = captured(pool);
  run_and_drop(pool, executable, c_);
  EXPECT_FALSE(pool.give_back_pages());
  device_.finish();
  EXPECT_FALSE(pool.give_back_pages()) << "a slower GPU would have it still";
  EXPECT_GE(pool.statistics().kept_bytes, kBlock);
  ASSERT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  EXPECT_EQ(pool.statistics().kept_bytes, 0_B);
  EXPECT_EQ(reserved(), 0_B);
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

TEST_F(GraphPoolWatched, OfGraphsThatLeakTheMemoryComesBackWhereTheHostWaits) {
  GraphPool pool(*heap_);
  free(allocate(1_MiB, b_));
  PoolBinding binding = binding_of(pool);
  begin();
  free(written(kBlock, a_, kLong));
  const GraphHandle leaked = *device_.end_capture(a_);
  binding.close();
  const ExecutableHandle executable = *device_.instantiate(leaked);
  run_and_drop(pool, executable, b_);
  EXPECT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  EXPECT_GE(reserved(), kBlock) << "the graph is there, and might be launched";
  EXPECT_GE(device_.now(), kLong);

  const ExecutableHandle again = *device_.instantiate(leaked);
  run(again, b_);
  destroy(again);
  heap_->captures().assume_graphs_leak();
  EXPECT_TRUE(heap_->trim(0_B, Trim::at_once).ok());
  EXPECT_GE(reserved(), kBlock) << "it runs";
  const Nanoseconds before = device_.now();
  EXPECT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  EXPECT_GE(device_.now(), before + 25_ms);
  EXPECT_EQ(reserved(), 0_B);
  ASSERT_TRUE(device_.destroy_graph(leaked).ok());
}

TEST_F(GraphPoolWatched, OfAGraphThatAllocatedNothingTheKnownStreamsAreWaitedFor) {
  for (const Stream launched_on : {a_, b_}) {
    GraphPool pool(*heap_);
    PoolBinding warm_up = GraphPools::warm_up(pool, a_);
    void* const block = written(kBlock, a_, 1_us);
    warm_up.close();
    device_.finish();
    free(allocate(1_MiB, b_));
    PoolBinding binding = binding_of(pool);
    begin();
    write(a_, block, kLong);
    const ExecutableHandle executable = end();
    binding.close();
    EXPECT_EQ(device_.calls(DeviceCall::retain), 0u);
    run(executable, launched_on);
    destroy(executable);
    free(block);
    pool.release_graph();
    free(written(kBlock, c_));
    expect_no_race();
    device_.finish();
    EXPECT_TRUE(heap_->trim().ok());
    EXPECT_EQ(reserved(), 0_B);
  }
}

TEST_F(GraphPoolWatched, OneThatCanNotBeWatchedIsRefusedAndNothingIsLost) {
  GraphPool pool(*heap_);
  device_.fail(DeviceCall::retain, 1);
  PoolBinding binding = binding_of(pool);
  begin();
  expect_error(heap_->allocate(kBlock, a_), ErrorCode::device, "retain");
  free(written(kBlock, a_));
  ASSERT_TRUE(device_.destroy_graph(*device_.end_capture(a_)).ok());
  binding.close(/*keep=*/false);
  const ExecutableHandle executable = captured(pool);
  destroy(executable);
  pool.release_graph();
  EXPECT_EQ(pool.statistics().reserved_bytes, 0_B);
}

TEST_F(GraphPoolWatched, InACaptureThatIsBrokenRequestsAreServedAsEver) {
  GraphPool pool(*heap_);
  PoolBinding binding = binding_of(pool);
  begin();
  EXPECT_FALSE(device_.stream(a_.handle).ok()) << "asking breaks it";
  free(allocate(kBlock, a_));
  EXPECT_FALSE(device_.end_capture(a_).ok());
  binding.close(/*keep=*/false);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0_B);
}

class GraphPoolWatchedUnderALimit : public GraphPoolWatched {
 protected:
  GraphPoolWatchedUnderALimit() : GraphPoolWatched({.limit = 40_MiB}) {}
};

TEST_F(GraphPoolWatchedUnderALimit, ItWaitsForADriverThatNeverSpeaksOnce) {
  GraphPool pool(*heap_);
  const ExecutableHandle executable = captured(pool);
  pool.release_graph();
  expect_error(heap_->allocate(kBlock, b_), ErrorCode::out_of_memory, "out of memory");
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(heap_->allocate(kBlock, b_).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
  destroy(executable);
  free(written(kBlock, b_));
}

}  // namespace
}  // namespace weir
