// SPDX-License-Identifier: Apache-2.0
// Fences as points that others can wait for: what a communication layer needs of a heap.
#include <memory>

#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

class FencePoints : public test::GraphPools {
 protected:
  Fence take(std::initializer_list<void*> blocks, Stream user) {
    const std::vector<const void*> inside(blocks.begin(), blocks.end());
    const Result<std::optional<Fence>> fence = heap_->fence_use(inside, user, /*exact=*/true);
    EXPECT_TRUE(fence.ok()) << (fence.ok() ? "" : fence.error().message());
    return fence.ok() && *fence ? **fence : Fence{};
  }
  void wait(Stream waiter, Fence fence) {
    const Status waited = heap_->wait(waiter, fence);
    EXPECT_TRUE(waited.ok()) << (waited.ok() ? "" : waited.error().message());
  }
};

TEST_F(FencePoints, OneEventServesTheBlocksAndWhoeverWaits) {
  void* const one = written(4_MiB, a_);
  void* const two = written(4_MiB, a_);
  wait(b_, take({}, a_));
  const std::uint64_t records = device_.calls(DeviceCall::record);
  read(b_, one);
  read(b_, two);
  const Fence done = take({one, two}, b_);
  wait(c_, done);
  EXPECT_EQ(device_.calls(DeviceCall::record), records + 1);
  write(c_, one);
  free(one);
  free(two);
}

// The pool's block comes first: the one behind it alone would need no fence of its own.
TEST_F(FencePoints, OfBlocksOfAPoolAndOfTheHeapAreOfEach) {
  GraphPool pool(*heap_);
  void* const own = written(4_MiB, a_);
  PoolBinding binding = warm_up(pool, a_);
  void* const block = written(4_MiB, a_);
  binding.close();
  order(a_, b_);
  read(b_, block, 10_ms);
  const std::vector<void*> both{block, own};
  ASSERT_TRUE(heap_->fence(both, b_).ok());
  free(block);
  binding = warm_up(pool, a_);
  free(written(4_MiB, a_));  // a race, were the fence lost
  free(own);
}

TEST_F(FencePoints, AKnownWaitIsNotMadeAgain) {
  void* const block = written(4_MiB, a_);
  const Fence written = take({}, a_);
  wait(b_, written);
  const std::uint64_t waits = device_.calls(DeviceCall::wait);
  wait(b_, written);
  wait(a_, written);  // its own
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits);
  // Nor by the heap, when it gives the memory out again.
  read(b_, block);
  wait(a_, take({block}, b_));
  free(block);
  const std::uint64_t after = device_.calls(DeviceCall::wait);
  free(this->written(4_MiB, a_));
  EXPECT_EQ(device_.calls(DeviceCall::wait), after);
}

TEST_F(FencePoints, APointIsOfTheWorkBeforeItAlone) {
  touch(a_, Reads(nullptr, 0_B), 1_ms);
  const Fence early = take({}, a_);
  touch(a_, Reads(nullptr, 0_B), 100_ms);
  (void)take({}, a_);
  wait(b_, early);
  touch(b_, Reads(nullptr, 0_B), 1_us);
  EXPECT_LT(device_.stream_waited(b_), 2_ms);
}

TEST_F(FencePoints, OrderIsAPointAndItsWaitAtOnce) {
  void* const block = written(4_MiB, a_);
  const std::uint64_t records = device_.calls(DeviceCall::record);
  const std::uint64_t waits = device_.calls(DeviceCall::wait);
  EXPECT_TRUE(heap_->order(a_, b_).ok());
  EXPECT_TRUE(heap_->order(b_, b_).ok());  // implied
  EXPECT_EQ(device_.calls(DeviceCall::record), records + 1);
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits + 1);
  read(b_, block);  // a race, were they not in order
  free(block);
  // What a_ does later is another matter.
  touch(a_, Reads(nullptr, 0_B), 1_ms);
  EXPECT_TRUE(heap_->order(a_, b_).ok());
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits + 2);
}

TEST_F(FencePoints, OrderAfterARetiredStreamIsAfterItsLastWork) {
  void* const block = written(4_MiB, a_);
  EXPECT_TRUE(heap_->retire(a_).ok());
  EXPECT_TRUE(heap_->order(a_, b_).ok());
  read(b_, block);
  EXPECT_TRUE(heap_->fence(block, b_).ok());
  free(block);
}

TEST_F(FencePoints, OrderThatCannotBeIsAnError) {
  touch(a_, Reads(nullptr, 0_B), 1_ms);
  for (const DeviceCall call : {DeviceCall::record, DeviceCall::wait}) {
    device_.fail(call, 1);
    expect_error(heap_->order(a_, b_), ErrorCode::device, "");
  }
  EXPECT_TRUE(heap_->order(a_, b_).ok());
}

TEST_F(FencePoints, AroundPointersAreOfTheBlocksThatTheyPointInto) {
  int host = 0;
  auto* const block = static_cast<std::byte*>(written(64_MiB, a_));
  void* const other = written(4_MiB, c_);
  wait(b_, take({}, a_));
  read(b_, block, 5_ms);
  const std::uint64_t records = device_.calls(DeviceCall::record);
  const void* const inside[] = {block + 5, &host, block + (64 << 20) - 1, nullptr};
  const Result<std::optional<Fence>> fence = heap_->fence_use(inside, b_, true);
  ASSERT_TRUE(fence.ok()) << fence.error().message();
  EXPECT_EQ(device_.calls(DeviceCall::record), records + 1);
  free(block);
  free(written(64_MiB, a_));  // a race, were the fence left out
  // What was not pointed into is nobody's but its stream's.
  const std::uint64_t waits = device_.calls(DeviceCall::wait);
  free(other);
  free(written(4_MiB, c_));
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits);
}

TEST_F(FencePoints, AroundPointersIntoWhatWasFreedFenceNothing) {
  auto* const block = static_cast<std::byte*>(written(1000_B, a_));
  void* const small = written(1000_B, a_);
  auto* const large = static_cast<std::byte*>(written(64_MiB, a_));
  wait(b_, take({}, a_));
  read(b_, block, 5_ms);
  free(small);
  free(large);
  struct Fences : EventSink {
    void on_event(const Event& event) override {
      if (event.kind == EventKind::fence) events.push_back(event);
    }
    std::vector<Event> events;
  } fences;
  heap_->start_recording(fences);
  const void* const inside[] = {small, large + 5, large + (1 << 20), block + 5, block + 7, small};
  const Result<std::optional<Fence>> fence = heap_->fence_use(inside, b_, true);
  ASSERT_TRUE(fence.ok()) << fence.error().message();
  EXPECT_TRUE(heap_->stop_recording(fences));
  EXPECT_FALSE(heap_->stop_recording(fences));
  ASSERT_EQ(fences.events.size(), 1u) << "once, for two pointers side by side";
  EXPECT_EQ(fences.events[0].address, Address::of(block));
  EXPECT_EQ(fences.events[0].other, b_.id);
  EXPECT_EQ(fences.events[0].sequence, fence->value().sequence);
  free(block);
}

TEST_F(FencePoints, AroundPointersAreOfPoolsToo) {
  GraphPool pool(*heap_);
  PoolBinding binding = warm_up(pool, a_);
  auto* const pooled = static_cast<std::byte*>(written(4_MiB, a_));
  wait(b_, take({}, a_));
  read(b_, pooled, 5_ms);
  const void* const inside[] = {pooled + 1, pooled + 2};
  const Result<std::optional<Fence>> fence = heap_->fence_use(inside, b_, true);
  ASSERT_TRUE(fence.ok()) << fence.error().message();
  free(pooled);
  free(written(4_MiB, a_));
  CaptureScope capture = begin(pool, a_);
  EXPECT_EQ(heap_->fence_use({}, a_, true).value(), std::nullopt);
  (void)end(capture);
}

TEST_F(FencePoints, AroundPointersOfTheStreamItselfCostNoEventAndMayBeWaitedFor) {
  void* const block = written(4_MiB, a_);
  const std::uint64_t records = device_.calls(DeviceCall::record);
  const void* const inside[] = {block};
  const Result<std::optional<Fence>> fence = heap_->fence_use(inside, a_, false);
  ASSERT_TRUE(fence.ok() && fence->has_value());
  EXPECT_EQ(device_.calls(DeviceCall::record), records);
  wait(b_, **fence);
  read(b_, block, 1_ms);
  ASSERT_TRUE(heap_->fence(block, b_).ok());
  free(block);
}

TEST_F(FencePoints, AroundPointersAreFencedThoughTheDeviceRefusesAnEvent) {
  for (const std::uint64_t refused : {1u, 2u}) {
    void* const block = written(4_MiB, a_);
    wait(b_, take({}, a_));
    read(b_, block, 5_ms);
    for (std::uint64_t nth = 1; nth <= refused; ++nth) device_.fail(DeviceCall::record, nth);
    const void* const inside[] = {block};
    EXPECT_TRUE(heap_->fence_use(inside, b_, true).ok());
    (void)device_.forget_faults();
    free(block);
    free(written(4_MiB, a_));  // no race
  }
}

TEST_F(FencePoints, MeanNothingInACaptureAndAreRefusedWithoutBreakingIt) {
  touch(b_, Reads(nullptr, 0_B), 1_ms);
  const Fence eager = take({}, b_);
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  EXPECT_FALSE(heap_->fence_use({}, a_, /*exact=*/true).value());  // the graph's edge
  expect_error(heap_->wait(a_, eager), ErrorCode::capture, "being captured");
  expect_error(heap_->order(a_, b_), ErrorCode::capture, "being captured");
  expect_error(heap_->order(b_, a_), ErrorCode::capture, "being captured");
  wait(c_, eager);  // other streams' work goes on
  free(written(1_MiB, a_));
  Graph graph = end(capture);
  launch(graph, a_);
}

TEST_F(FencePoints, WhatACaptureLeavesWaitsForItsUsersWorkAfterTheCapture) {
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  void* const output = written(4_MiB, a_);
  order(a_, b_);
  EXPECT_TRUE(heap_->record_stream(output, b_).ok());
  order(b_, a_);
  {
    Graph graph = end(capture);
    launch(graph, a_);
  }
  order(a_, b_);
  touch(b_, Reads(output, 4_MiB), 1_ms);
  free(output);
  heap_->set_limit(device_.physical_bytes());
  free(written(4_MiB, c_));  // no race, though there is no other memory
}

using Attachments = FencePoints;
struct Resource final : CaptureResource {};

TEST_F(Attachments, AForkedStreamIsJoinedWhenTheCaptureEnds) {
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  void* const block = written(1_MiB, a_);
  order(a_, b_);
  read(b_, block);
  const Result<bool> attached = heap_->captures().attach(a_, {.forked = b_, .resource = nullptr});
  ASSERT_TRUE(attached.ok());
  EXPECT_TRUE(*attached);
  free(block);
  Graph graph = end(capture);  // an error, were b_ not joined
  launch(graph, a_);
}

TEST_F(Attachments, AStreamThatNeverForkedChangesNothing) {
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  EXPECT_TRUE(*heap_->captures().attach(a_, {.forked = b_, .resource = nullptr}));
  free(written(1_MiB, a_));
  Graph graph = end(capture);
  launch(graph, a_);
}

TEST_F(Attachments, WhatIsKeptGoesWithTheGraph) {
  GraphPool pool(*heap_);
  auto resource = std::make_shared<Resource>();
  const std::weak_ptr<Resource> watched = resource;
  CaptureScope capture = begin(pool, a_);
  EXPECT_TRUE(*heap_->captures().attach(a_, {.forked = a_, .resource = std::move(resource)}));
  free(written(1_MiB, a_));
  Graph graph = end(capture);
  EXPECT_FALSE(watched.expired());
  Graph moved = std::move(graph);
  EXPECT_FALSE(watched.expired());
  launch(moved, a_);
  device_.finish();
  moved = Graph();
  EXPECT_TRUE(watched.expired());
}

TEST_F(Attachments, WhatIsKeptGoesWithACaptureThatFails) {
  GraphPool pool(*heap_);
  auto resource = std::make_shared<Resource>();
  const std::weak_ptr<Resource> watched = resource;
  {
    CaptureScope capture = begin(pool, a_);
    EXPECT_TRUE(*heap_->captures().attach(a_, {.forked = a_, .resource = std::move(resource)}));
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(Attachments, AreListedInOrderByTheCaptureAndThenByItsGraph) {
  GraphPool pool(*heap_);
  const auto first = std::make_shared<Resource>(), second = std::make_shared<Resource>();
  CaptureScope capture = begin(pool, a_);
  EXPECT_TRUE(*heap_->captures().attach(a_, {a_, second}));
  EXPECT_TRUE(*heap_->captures().attach(a_, {a_, nullptr}));  // a stream alone
  EXPECT_TRUE(*heap_->captures().attach(a_, {a_, first}));
  EXPECT_THAT(capture.resources(), testing::ElementsAre(second, first));
  free(written(1_MiB, a_));
  Graph graph = end(capture);
  EXPECT_THAT(capture.resources(), testing::IsEmpty());
  const Graph moved = std::move(graph);
  EXPECT_THAT(moved.resources(), testing::ElementsAre(second, first));
}

TEST_F(Attachments, WhereTheDriverDoesNotSayWhetherItIsCapturedNothingIsAttached) {
  GraphPool pool(*heap_);
  const auto resource = std::make_shared<Resource>();
  CaptureScope capture = begin(pool, a_);
  device_.fail(DeviceCall::capture_info, 1);
  expect_error(heap_->captures().attach(a_, {a_, resource}), ErrorCode::device, "capture_info");
  EXPECT_THAT(capture.resources(), testing::IsEmpty());
  EXPECT_EQ(resource.use_count(), 1);
  EXPECT_TRUE(*heap_->captures().attach(a_, {a_, resource}));
  (void)end(capture);
}

TEST_F(Attachments, OutsideACaptureScopeThereIsNoneToJoin) {
  EXPECT_FALSE(*heap_->captures().attach(a_, {}));
  GraphPool pool(*heap_);
  Result<PoolBinding> binding = pool.capture([&](Stream stream) { return stream == a_; });
  ASSERT_TRUE(binding.ok());
  EXPECT_FALSE(*heap_->captures().attach(a_, {}));  // of a capture that the program ends by itself
  binding->close(/*keep=*/false);
}

TEST_F(Attachments, ToACaptureThatNoPoolServesAreRefusedAndItGoesOn) {
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  expect_error(heap_->captures().attach(a_, {}), ErrorCode::capture, "no graph pool serves");
  touch(a_, Reads(nullptr, 0_B), 1_us);
  const Result<GraphHandle> graph = device_.end_capture(a_);
  ASSERT_TRUE(graph.ok());
  EXPECT_TRUE(device_.destroy_graph(*graph).ok());
}

TEST_F(FencePoints, AWaitThatTheProgramMadeItselfIsKnown) {
  void* const block = written(4_MiB, a_);
  wait(b_, take({}, a_));
  read(b_, block);
  const Fence fence = take({block}, b_);
  const EventHandle own = device_.create_event().value();
  ASSERT_TRUE(device_.record(own, b_).ok());
  ASSERT_TRUE(device_.wait(a_, own).ok());
  heap_->note_waited(a_, fence);
  heap_->note_waited(a_, fence);
  heap_->note_waited(b_, fence);  // its own
  free(block);
  const std::uint64_t waits = device_.calls(DeviceCall::wait);
  free(written(4_MiB, a_));
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits);
  // Of other streams nothing is known.
  const Fence later = take({}, b_);
  heap_->note_waited(c_, later);
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits);
  wait(c_, fence);  // an earlier point
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits);
  wait(a_, later);
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits + 1);
  EXPECT_TRUE(device_.destroy_event(own).ok());
}

// Meanwhile another thread takes more points of the stream than are remembered.
TEST(HostWaits, AnEventThatTheHostWaitsForIsNotUsedAnew) {
  SimDevice device;
  test::CallsAsTheHostWaits calls(device);
  DeviceHeap heap(calls);
  const Stream a = device.new_stream(), b = device.new_stream(), c = device.new_stream();
  void* const used = *heap.allocate(64_MiB, a);
  void* const other = *heap.allocate(1_MiB, b);
  ASSERT_TRUE(device.launch(a, Writes(used, 64_MiB), 10_ms).ok());
  ASSERT_TRUE(heap.deallocate(used).ok());
  calls.call = [&] {
    for (int i = 0; i < 64; ++i) EXPECT_TRUE(heap.fence(other, a).ok());
    EXPECT_TRUE(heap.fence(other, c).ok());
  };
  ASSERT_TRUE(heap.trim(0_B, Trim::waits).ok());
  EXPECT_GE(device.now(), 10_ms);
  EXPECT_EQ(device.race_count(), 0u);  // nor was memory unmapped that is in use
  EXPECT_TRUE(heap.deallocate(other).ok());
  device.finish();
}

}  // namespace
}  // namespace weir
