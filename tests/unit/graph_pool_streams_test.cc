// SPDX-License-Identifier: Apache-2.0
// Streams that are met by their handle while they are captured, when the driver tells no id.
#include "tests/unit/graph_pool_fixture.h"
#include "weir/allocator.h"

namespace weir {
namespace {

class GraphPoolStreams : public test::GraphPools {
 protected:
  Stream stream(void* handle) {
    const Result<Stream> stream = heap_->stream(handle);
    EXPECT_TRUE(stream.ok()) << (stream.ok() ? "" : stream.error().message());
    return stream.ok() ? *stream : Stream{};
  }
  // Forks to `side`, uses memory on both streams, one's on the other too, and joins.
  Graph forked(GraphPool& pool, Stream side) {
    CaptureScope capture = begin(pool, a_);
    order(a_, side);
    void* const block = allocate(8_MiB, stream(side.handle));
    write(side, block);
    order(side, a_);
    read(a_, block);
    EXPECT_TRUE(heap_->fence(block, stream(a_.handle)).ok());
    free(block);
    order(a_, side);
    void* const other = allocate(8_MiB, stream(side.handle));
    write(side, other);
    free(other);
    free(written(8_MiB, a_));
    order(side, a_);
    return end(capture);
  }
};

TEST_F(GraphPoolStreams, OneMetFirstInACaptureIsServed) {
  GraphPool pool(*heap_);
  const Stream side = device_.new_stream();
  Graph graph = forked(pool, side);
  EXPECT_EQ(wrong_reads(graph), 0u);
  launch(graph, a_);
  EXPECT_LE(pool.statistics().reserved_bytes, 20_MiB);
}

// Found by the soak: each left an event behind, in each pool that had captured it, and pools that
// had never met a stream recorded an event for its end.
TEST_F(GraphPoolStreams, OnesThatWereCapturedAndRetiredLeaveNoEventBehind) {
  GraphPool pool(*heap_), other(*heap_);
  std::uint64_t early = 0;
  for (int i = 0; i < 400; ++i) {
    const Stream side = device_.new_stream();
    Graph graph = forked(pool, side);
    launch(graph, a_);
    device_.finish();
    const Result<void*> eager = pool.allocate(1_MiB, a_);
    ASSERT_TRUE(eager.ok());
    EXPECT_TRUE(heap_->deallocate(*eager).ok());
    const std::uint64_t records = device_.calls(DeviceCall::record);
    EXPECT_TRUE(heap_->retire(side).ok());
    EXPECT_LE(device_.calls(DeviceCall::record) - records, 2u) << "the heap's own, and the pool's";
    EXPECT_TRUE(device_.destroy_stream(side).ok());
    if (i == 200) early = device_.live().events;
  }
  EXPECT_LE(device_.live().events, early);
}

TEST_F(GraphPoolStreams, ItsIdIsTheDriversOnceTheCaptureHasEnded) {
  GraphPool pool(*heap_);
  const Stream side = device_.new_stream();
  CaptureScope capture = begin(pool, a_);
  order(a_, side);
  EXPECT_TRUE(stream(side.handle).is_of_captured());
  EXPECT_EQ(stream(c_.handle), c_) << "not captured";
  order(side, a_);
  Graph graph = end(capture);
  EXPECT_EQ(stream(side.handle), side);
  free(written(1_MiB, stream(side.handle)));
  // And in the next capture it is known.
  CaptureScope next = begin(pool, a_);
  order(a_, side);
  EXPECT_EQ(stream(side.handle), side);
  order(side, a_);
  EXPECT_EQ(wrong_reads(end(next)), 0u);
}

TEST_F(GraphPoolStreams, WithoutAPoolTheCaptureIsBrokenAndTheErrorSaysIt) {
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  expect_error(heap_->stream(a_.handle), ErrorCode::capture, "captured");
  EXPECT_FALSE(device_.end_capture(a_).ok());
}

TEST(AllocatorInACapture, TakesStreamsByTheirHandles) {
  SimDevice device;
  const Stream main = device.new_stream(), side = device.new_stream();
  Allocator weir(device);
  GraphPool pool(weir.heap());
  Result<CaptureScope> capture = CaptureScope::begin(pool, main);
  ASSERT_TRUE(capture.ok());
  const EventHandle event = *device.create_event();
  const auto order = [&](Stream earlier, Stream later) {
    EXPECT_TRUE(device.record(event, earlier).ok());
    EXPECT_TRUE(device.wait(later, event).ok());
  };
  order(main, side);
  void* const block = weir.allocate(1_MiB, side.handle);
  EXPECT_TRUE(device.launch(side, Writes(block, 1_MiB), 1_us).ok());
  weir.record_stream(block, main.handle);
  weir.fence(block, main.handle);
  weir.deallocate(block);
  order(side, main);
  Result<Graph> graph = capture->end();
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_TRUE(graph->launch(main).ok());
  EXPECT_TRUE(device.destroy_event(event).ok());
  device.finish();
}

}  // namespace
}  // namespace weir
