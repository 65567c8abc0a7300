// SPDX-License-Identifier: Apache-2.0
// Fences of c10d's operations, on a simulated device that reports every access that nothing orders.
#include "torch/c10d/collective_fences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/torch/fake_collectives.h"

namespace weir::pytorch {
namespace {

class CollectiveFencesOf : public WithCollectives {
 protected:
  explicit CollectiveFencesOf(ReusePolicy reuse = ReusePolicy::wait) : WithCollectives(reuse) {}

  static constexpr Bytes kBytes = 64_MiB;
  const int group_ = 0;
  std::optional<Fence> fence_;  // of the last one
  CommStreamKey key() const { return {&group_, 0}; }

  // The program: all_reduce(block, async_op=True).
  std::shared_ptr<FakeCommunicator::End> all_reduce(void* block, Nanoseconds duration) {
    Operation operation;
    operation.memory.push_back(block);
    Operation::begin(operation);
    auto end = communicator_.queue({Writes(block, kBytes)}, duration);
    Operation::end(operation);
    fence_ = fences_.fence(key(), operation, [&] { end->join(); });
    return end;
  }

  // An operation that has noted a record_stream() of its block, and has no fence.
  Operation write_behind_a_recorded_use(void* block) {
    Operation operation;
    operation.memory.push_back(block);
    Operation::begin(operation);
    record_stream(block, communicator_.stream());
    (void)communicator_.queue({Writes(block, kBytes)}, 5_ms);
    Operation::end(operation);
    return operation;
  }
};

// Less is known then: whoever gets the memory waits once more.
TEST_F(CollectiveFencesOf, AWaitThatCantBeNotedFailsNoCall) {
  void* const block = allocate(kBytes);
  write(block, kBytes);
  all_reduce(block, 5_ms)->join();
  ASSERT_TRUE(fence_.has_value());
  constexpr int kNoDevice = 64;
  EXPECT_NO_THROW(fences_.note_waited(kNoDevice, *fence_));
  backend_.raw_delete(block);
  void* const next = allocate(kBytes);
  write(next, kBytes);
  EXPECT_EQ(sim_.race_count(), 0u);
  backend_.raw_delete(next);
}

TEST_F(CollectiveFencesOf, MemoryOfAnOperationWaitsForNoLaterOneOfItsStream) {
  void* const first = allocate(kBytes);
  void* const second = allocate(kBytes);
  (void)all_reduce(first, 1_ms);
  (void)all_reduce(second, 500_ms);
  backend_.raw_delete(first);
  void* const next = allocate(kBytes);
  EXPECT_EQ(next, first);
  write(next, kBytes);
  EXPECT_LT(sim_.stream_waited(compute_), 10_ms);
  backend_.raw_delete(next);
  backend_.raw_delete(second);
}

// PyTorch calls record_stream() for operations between two ranks, which would hold the memory until
// everything is done that the communication stream is given meanwhile.
TEST_F(CollectiveFencesOf, RecordedUsesOfAnOperationAreReplacedByItsFence) {
  void* const block = allocate(kBytes);
  void* const other = allocate(kBytes);
  write(block, kBytes);
  Operation operation;
  operation.memory.push_back(block);
  Operation::begin(operation);
  record_stream(block, communicator_.stream());
  record_stream(other, communicator_.stream());  // no tensor of the operation's: as ever
  const auto end = communicator_.queue({Reads(block, kBytes)}, 1_ms);
  Operation::end(operation);
  EXPECT_EQ(operation.recorded.size(), 1u);
  fences_.fence(key(), operation, [&] { end->join(); });
  (void)communicator_.queue({}, 500_ms);
  backend_.raw_delete(block);
  void* const next = allocate(kBytes);
  EXPECT_EQ(next, block);
  write(next, kBytes);
  EXPECT_LT(sim_.stream_waited(compute_), 10_ms);
  backend_.raw_delete(next);
  backend_.raw_delete(other);
}

TEST_F(CollectiveFencesOf, WhatFailsToJoinLeavesRecordedUsesAsTheyWere) {
  void* const block = allocate(kBytes);
  Operation operation = write_behind_a_recorded_use(block);
  EXPECT_EQ(fences_.fence(key(), operation, [] { TORCH_CHECK(false, "a CUDA error"); }),
            std::nullopt);
  EXPECT_EQ(streams_.current().id, compute_.id);
  EXPECT_EQ(fences_.fenced(), 0u);
  backend_.raw_delete(block);
  void* const next = allocate(kBytes);
  write(next, kBytes);
  backend_.raw_delete(next);
}

// all_gather into a list, and the driver refuses the event that the fence would be. PyTorch has let
// go of its own tensor by then, whose use it had recorded, and the program drops the other one.
TEST_F(CollectiveFencesOf, WhereTheDriverRefusesAnEventNothingIsLeftWithoutAFence) {
  void* const input = allocate(kBytes);
  write(input, kBytes);
  Operation operation;
  operation.memory.push_back(input);
  Operation::begin(operation);
  void* const flat = allocate(kBytes);
  operation.memory.push_back(flat);
  record_stream(flat, communicator_.stream());
  const auto end = communicator_.queue({Reads(input, kBytes), Writes(flat, kBytes)}, 5_ms);
  Operation::end(operation);
  std::optional<Fence> fence;
  EXPECT_NO_THROW(fence = fences_.fence(key(), operation, [&] {
    end->join();
    backend_.raw_delete(flat);
    // The fence's, and the one that is tried in its place.
    for (const std::uint64_t nth : {1, 2, 3}) sim_.fail(DeviceCall::record, nth);
  }));
  EXPECT_EQ(fence, std::nullopt);
  (void)sim_.forget_faults();
  backend_.raw_delete(input);
  std::vector<void*> next;
  for (int i = 0; i < 3; ++i) write(next.emplace_back(allocate(kBytes)), kBytes);
  EXPECT_EQ(sim_.race_count(), 0u);
  for (void* const each : next) backend_.raw_delete(each);
}

// What PyTorch has dropped before its join failed is ordered behind the operation all the same.
TEST_F(CollectiveFencesOf, AJoinThatFailsLateLeavesNoBlockWithoutAFence) {
  void* const flat = allocate(kBytes);
  write(flat, kBytes);
  Operation operation;
  operation.memory.push_back(flat);
  Operation::begin(operation);
  const auto end = communicator_.queue({Writes(flat, kBytes)}, 5_ms);
  Operation::end(operation);
  EXPECT_NO_THROW(fences_.fence(key(), operation, [&] {
    end->join();
    backend_.raw_delete(flat);
    TORCH_CHECK(false, "a CUDA error");
  }));
  void* const next = allocate(kBytes);
  write(next, kBytes);
  EXPECT_EQ(sim_.race_count(), 0u);
  backend_.raw_delete(next);
}

// Whoever asks for memory while it is current: a finalizer, say.
TEST_F(CollectiveFencesOf, ThePrivateStreamIsKnownToLast) {
  void* const block = allocate(kBytes);
  write(block, kBytes);
  (void)all_reduce(block, 1_ms);
  const Result<Stream> stream = memory_.streams().of(of_pytorch(streams_.last_made()));
  ASSERT_TRUE(stream.ok());
  EXPECT_FALSE(stream->may_end);
  backend_.raw_delete(block);
}

// It may be used again as soon as its tensor goes, so PyTorch has to keep that.
TEST_F(CollectiveFencesOf, OperationsOnMemoryOfOtherAllocatorsAreLeftAlone) {
  std::vector<char> others(1024);
  void* const block = allocate(kBytes);
  write(block, kBytes);
  Operation operation;
  operation.memory.push_back(block);
  operation.memory.push_back(others.data());
  Operation::begin(operation);
  record_stream(block, communicator_.stream());
  (void)communicator_.queue({Writes(block, kBytes)}, 1_ms);
  Operation::end(operation);
  fences_.fence(key(), operation, [] { FAIL() << "PyTorch was made to let go of the tensors"; });
  EXPECT_EQ(fences_.fenced(), 0u);
  EXPECT_EQ(streams_.made(), 0u);
  backend_.raw_delete(block);  // recorded, as ever
  void* const next = allocate(kBytes);
  write(next, kBytes);
  backend_.raw_delete(next);
}

TEST_F(CollectiveFencesOf, OnlyWhatItsOwnThreadFreesInAJoinIsHeldUntilTheFence) {
  const auto is_live = [&](void* block) { return memory_.heap().find(block).has_value(); };
  void* const tensor = allocate(kBytes);
  void* const before = allocate(1_MiB);
  void* const own = allocate(1_MiB);
  void* const others = allocate(1_MiB);
  Operation operation;
  operation.memory.push_back(tensor);
  Operation::begin(operation);
  backend_.raw_delete(before);
  EXPECT_FALSE(is_live(before));
  Operation::end(operation);
  bool own_was_held = false;
  fences_.fence(key(), operation, [&] {
    std::thread([&] { backend_.raw_delete(others); }).join();
    EXPECT_FALSE(is_live(others));
    backend_.raw_delete(own);
    own_was_held = is_live(own);
  });
  EXPECT_TRUE(own_was_held);
  EXPECT_FALSE(is_live(own));
  EXPECT_FALSE(Operation::any_noted());
  backend_.raw_delete(tensor);
}

TEST_F(CollectiveFencesOf, AnOperationWithinAnotherNotesForItself) {
  Operation outer, inner;
  std::vector<void*> blocks;
  const auto next = [&] { return blocks.emplace_back(allocate(1_MiB)); };
  EXPECT_FALSE(Operation::any_noted());
  Operation::begin(outer);
  void* const first = next();
  Operation::begin(inner);
  void* const second = next();
  Operation::end(inner);
  void* const third = next();
  Operation::end(outer);
  (void)next();
  EXPECT_THAT(outer.allocated, testing::ElementsAre(first, third));
  EXPECT_THAT(inner.allocated, testing::ElementsAre(second));
  EXPECT_FALSE(Operation::any_noted());
  outer.add(inner);
  EXPECT_THAT(outer.allocated, testing::ElementsAre(first, third, second));
  for (void* const block : blocks) backend_.raw_delete(block);
}

// --- Scenario C: eight layers, each followed by an all-reduce that is dropped, under the policy
// that programs have unless they say otherwise.

class ScenarioC : public CollectiveFencesOf {
 protected:
  ScenarioC() : CollectiveFencesOf(ReusePolicy::balanced) {}

  static constexpr int kLayers = 8;
  // Milliseconds that a step takes.
  double run() {
    std::vector<void*> weights;
    for (int i = 0; i < kLayers; ++i) weights.push_back(allocate(kBytes * 2));
    void* const input = allocate(kBytes);
    Nanoseconds begin;
    for (int step = 0; step < 2 * kSteps; ++step) {
      if (step == kSteps) begin = finished();
      void* x = input;
      for (int layer = 0; layer < kLayers; ++layer) {
        void* const next = allocate(kBytes);
        write(next, kBytes, 800_us);
        if (x != input) backend_.raw_delete(x);
        x = next;
        void* const y = allocate(kBytes);
        write(y, kBytes, 50_us);
        (void)all_reduce(y, 500_us);
        backend_.raw_delete(y);
        sim_.advance(60_us);
      }
      backend_.raw_delete(x);
    }
    const double milliseconds =
        static_cast<double>((finished() - begin).count) / 1e6 / static_cast<double>(kSteps);
    for (void* const each : weights) backend_.raw_delete(each);
    backend_.raw_delete(input);
    return milliseconds;
  }
  Bytes beyond_the_weights() const { return sim_.physical_peak() - kBytes * 2 * kLayers; }

 private:
  static constexpr int kSteps = 20;
  Nanoseconds finished() {
    sim_.finish();
    return sim_.now();
  }
};

TEST_F(ScenarioC, HoldsNoMoreThanWhatIsInFlightAtTheSpeedOfTheLayersAlone) {
  EXPECT_LT(run(), 6.8 * 1.02);  // eight times 850 us
  EXPECT_LE(beyond_the_weights(), 480_MiB);
}

// --- Captures.

class CapturedCollectives : public CollectiveFencesOf {};

TEST_F(CapturedCollectives, AFenceIsAnEdgeOfTheGraph) {
  begin_capture();
  void* first = nullptr;
  for (int layer = 0; layer < 8; ++layer) {
    void* const block = allocate(kBytes);
    if (first == nullptr) first = block;
    EXPECT_EQ(block, first);  // the memory is used again by later layers
    write(block, kBytes);
    const auto work = all_reduce(block, 1_ms);
    backend_.raw_delete(block);
    if (layer == 7) work->join();  // as any capture must
  }
  const GraphHandle graph = end_capture();
  EXPECT_EQ(fences_.fenced(), 8u);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(sim_.replay_in_random_order(graph, seed), 0u);
  }
  drop(graph);
}

// As with PyTorch alone: the communication stream has not joined. The private one is no more
// reason.
TEST_F(CapturedCollectives, AWaitInACaptureIsTheGraphsAndNothingIsNoted) {
  void* const block = allocate(kBytes);
  (void)all_reduce(block, 1_ms);
  const std::optional<Fence> eager = fence_;
  ASSERT_TRUE(eager.has_value());
  begin_capture();
  void* const inside = allocate(kBytes);
  all_reduce(inside, 1_ms)->join();
  EXPECT_FALSE(fence_.has_value());
  fences_.note_waited(0, *eager);  // the program can't have: the capture would be broken
  backend_.raw_delete(inside);
  const GraphHandle graph = end_capture();
  backend_.raw_delete(block);
  void* const next = allocate(kBytes);
  write(next, kBytes);
  backend_.raw_delete(next);
  drop(graph);
}

// The graph may be launched at any time: the tensor's memory is nobody else's meanwhile. The
// program keeps the tensor, as it must, until the graph is gone.
TEST_F(CapturedCollectives, ATensorFromBeforeTheCaptureMayBeReducedInIt) {
  void* const parameter = allocate(kBytes);
  write(parameter, kBytes);
  begin_capture();
  all_reduce(parameter, 1_ms)->join();
  const GraphHandle graph = end_capture();
  drop(graph);
  backend_.raw_delete(parameter);
  void* const next = allocate(kBytes);
  write(next, kBytes);
  backend_.raw_delete(next);
}

// A capture that nobody announced: no pool serves it, and no fence can be had.
TEST_F(CapturedCollectives, InACaptureThatNobodyAnnouncedMemoryIsHeldBack) {
  void* const block = allocate(kBytes);
  write(block, kBytes);
  ASSERT_TRUE(sim_.begin_capture(compute_, CaptureMode::relaxed).ok());
  all_reduce(block, 1_ms)->join();
  const Result<GraphHandle> graph = sim_.end_capture(compute_);
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(sim_.destroy_graph(*graph).ok());
  backend_.raw_delete(block);
}

}  // namespace
}  // namespace weir::pytorch
