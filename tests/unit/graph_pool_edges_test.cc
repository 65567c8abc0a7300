// SPDX-License-Identifier: Apache-2.0
// Graph pools where things happen in an order that no plan has: graphs, streams and pools that go
// while a capture goes on, captures that overlap, and captures that Weir knows nothing of.

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/unit/graph_pool_fixture.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class GraphPoolEdges : public test::GraphPools {
 protected:
  using GraphPools::GraphPools;
};

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
