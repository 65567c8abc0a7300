// SPDX-License-Identifier: Apache-2.0
// Several communicators in one group.
#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::kCount;
using test::kSize;
using test::Rank;
using testing::HasSubstr;

Operation sum_of(void* block, std::uint64_t count = kCount) {
  return {.kind = OperationKind::all_reduce, .send = block, .receive = block, .count = count};
}

class Together : public test::CommRanks {
 protected:
  // Each rank's communicator of all, and a second one of all.
  void create_two() {
    create();
    prepare();
    others_.resize(ranks_.size());
    on_all([this](Rank& rank) {
      Result<std::optional<Communicator>> made =
          rank.comm->split(0, rank.number, {.name = "other"});
      expect_ok(made);
      others_.at(static_cast<std::size_t>(rank.number)) = std::move(*made);
      expect_ok(other(rank).prepare());
    });
  }
  Communicator& other(const Rank& rank) {
    return *others_.at(static_cast<std::size_t>(rank.number));
  }
  // Each communicator sums a block of its own, which is given back at once; another one is next in
  // its place.
  void use_both(Rank& rank) {
    void* const mine = rank.allocate(kSize, rank.compute);
    void* const its = rank.allocate(kSize, rank.compute);
    rank.write(rank.compute, mine, kSize);
    rank.write(rank.compute, its, kSize);
    const Operation first = sum_of(mine), second = sum_of(its);
    const Result<std::vector<Work>> works = Communicator::run_together(
        std::vector<Communicator::Part>{{*rank.comm, {&first, 1}}, {other(rank), {&second, 1}}},
        overlapped(rank.compute));
    expect_ok(works);
    rank.free(mine);
    rank.free(its);
    ASSERT_TRUE(works.ok());
    ASSERT_EQ(works->size(), 2u);
    for (const Work& work : *works) expect_ok(work.wait(rank.compute));
  }
  void TearDown() override {
    on_all([this](Rank& rank) {
      if (!others_.empty()) others_.at(static_cast<std::size_t>(rank.number)).reset();
    });
    CommRanks::TearDown();
  }

  std::vector<std::optional<Communicator>> others_;
};

TEST_F(Together, RunInOneGroupAndTheirBuffersMayGoAtOnce) {
  create_two();
  on_all([this](Rank& rank) {
    const std::uint64_t waits = rank.device.host_waits();  // prepare()'s
    for (int step = 0; step < 20; ++step) use_both(rank);
    EXPECT_EQ(rank.device.host_waits(), waits);
    EXPECT_LE(rank.heap->statistics().reserved_bytes.current, kSize.count * 6);
  });
}

TEST_F(Together, AreTheFirstOperationsOfACaptureOfBoth) {
  create_two();
  on_all([this](Rank& rank) {
    GraphPool pool(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    for (int layer = 0; layer < 4; ++layer) use_both(rank);
    Result<Graph> graph = rank.comm->end_capture(*capture);
    expect_ok(graph);
    std::uint64_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      wrong += rank.device.replay_in_random_order(graph->graph(), seed);
    }
    EXPECT_EQ(wrong, 0u);
    for (int launch = 0; launch < 3; ++launch) expect_ok(rank.comm->launch(*graph, rank.compute));
    rank.device.finish();
  });
  EXPECT_EQ(world_.refused_in_captures(), 0u);
}

// A send that waits for a receive which the other rank asks for on another communicator.
TEST_F(Together, MayWaitForOneAnother) {
  create_two();
  on_all([this](Rank& rank) {
    void* const out = rank.allocate(kSize, rank.compute);
    void* const in = rank.allocate(kSize, rank.compute);
    rank.write(rank.compute, out, kSize);
    const int peer = 1 - rank.number;
    const Operation send{.kind = OperationKind::send, .send = out, .count = kCount, .peer = peer};
    const Operation receive{
        .kind = OperationKind::receive, .receive = in, .count = kCount, .peer = peer};
    // Rank 0 sends on the first and receives on the second; rank 1 the reverse.
    const Operation &of_first = rank.number == 0 ? send : receive,
                    &of_second = rank.number == 0 ? receive : send;
    const Result<std::vector<Work>> works =
        Communicator::run_together(std::vector<Communicator::Part>{{*rank.comm, {&of_first, 1}},
                                                                   {other(rank), {&of_second, 1}}},
                                   overlapped(rank.compute));
    expect_ok(works);
    for (const Work& work : *works) expect_ok(work.wait(rank.compute));
    rank.read(rank.compute, in, kSize);
    rank.free(out);
    rank.free(in);
    rank.device.finish();
    expect_ok(rank.comm->poll());
    expect_ok(other(rank).poll());
  });
}

TEST_F(Together, ThatCannotBeAreNamedAndNothingIsQueued) {
  create_two();
  Rank &here = *ranks_[0], &there = *ranks_[1];
  void* const block = here.allocate(kSize, here.compute);
  const Operation sum = sum_of(block);
  const auto run = [&](const Communicator& first, const Communicator& second) {
    return Communicator::run_together(
        std::vector<Communicator::Part>{{first, {&sum, 1}}, {second, {&sum, 1}}},
        overlapped(here.compute));
  };
  expect_error(run(*here.comm, *here.comm), ErrorCode::invalid_argument, "in two parts");
  expect_error(run(*here.comm, *there.comm), ErrorCode::invalid_argument, "has another context");
  const Operation nothing{.kind = OperationKind::all_reduce, .count = kCount};
  expect_error(
      Communicator::run_together(
          std::vector<Communicator::Part>{{*here.comm, {&sum, 1}}, {other(here), {&nothing, 1}}},
          here.compute),
      ErrorCode::invalid_argument, "communicator 'other'");
  EXPECT_TRUE(Communicator::run_together({}, here.compute).ok());
  const Result<std::vector<Work>> none = Communicator::run_together(
      std::vector<Communicator::Part>{{*here.comm, {}}, {other(here), {}}}, here.compute);
  expect_ok(none);
  EXPECT_EQ(none->size(), 2u);
  here.free(block);
  expect_ok(here.comm->status());
}

TEST_F(Together, ThatNcclRefusesEndBothAndTheirBlocksAreFenced) {
  create_two();
  Rank& rank = *ranks_[0];
  may_differ_ = true;
  world_.fail(0, NcclCall::group_end, 1);
  void* const block = rank.allocate(kSize, rank.compute);
  const Operation sum = sum_of(block);
  expect_error(Communicator::run_together(std::vector<Communicator::Part>{{*rank.comm, {&sum, 1}},
                                                                          {other(rank), {&sum, 1}}},
                                          overlapped(rank.compute)),
               ErrorCode::device, "made to fail");
  expect_error(rank.comm->status(), ErrorCode::device, "made to fail");
  expect_error(other(rank).status(), ErrorCode::device, "made to fail");
  const std::uint64_t waits = rank.device.calls(DeviceCall::wait);
  rank.free(block);
  void* const next = rank.allocate(kSize, rank.compute);
  EXPECT_GT(rank.device.calls(DeviceCall::wait), waits) << "a part of the group might run";
  rank.free(next);
}

TEST_F(Together, ThatNcclRefusesNameTheOneThatItWas) {
  create_two();
  Rank& rank = *ranks_[0];
  may_differ_ = true;
  world_.fail(0, NcclCall::enqueue, 2);
  void* const block = rank.allocate(kSize, rank.compute);
  const Operation sum = sum_of(block);
  expect_error(Communicator::run_together(std::vector<Communicator::Part>{{*rank.comm, {&sum, 1}},
                                                                          {other(rank), {&sum, 1}}},
                                          overlapped(rank.compute)),
               ErrorCode::device, "communicator 'other'");
  rank.free(block);
}

// Nothing is queued then, and all go on.
TEST_F(Together, WhereOneCanNotBeginSayWhyAndNoneRuns) {
  create_two();
  on_all([this](Rank& rank) {
    void* const blocks[] = {rank.allocate(kSize, rank.compute), rank.allocate(kSize, rank.compute)};
    const Operation first = sum_of(blocks[0]), second = sum_of(blocks[1]);
    const std::vector<Communicator::Part> parts{{*rank.comm, {&first, 1}},
                                                {other(rank), {&second, 1}}};
    const std::uint64_t before = world_.operations(rank.number);
    for (const std::uint64_t nth : {1, 2}) {
      rank.device.fail(DeviceCall::wait, nth);
      expect_error(Communicator::run_together(parts, overlapped(rank.compute)), ErrorCode::device,
                   "wait");
    }
    EXPECT_EQ(world_.operations(rank.number), before);
    expect_ok(Communicator::run_together(parts, overlapped(rank.compute)));
    for (void* const block : blocks) rank.free(block);
  });
}

TEST_F(Together, WhereOneIsNotPreparedNoneJoinsTheCapture) {
  create();
  prepare();
  on_all([](Rank& rank) {
    Result<std::optional<Communicator>> made = rank.comm->split(0, rank.number, {.name = "raw"});
    expect_ok(made);
    GraphPool pool(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    void* const block = rank.allocate(kSize, rank.compute);
    const Operation sum = sum_of(block);
    expect_error(Communicator::run_together(
                     std::vector<Communicator::Part>{{*rank.comm, {&sum, 1}}, {**made, {&sum, 1}}},
                     overlapped(rank.compute)),
                 ErrorCode::capture, "communicator 'raw'");
    rank.write(rank.compute, block, kSize);
    rank.free(block);
    Result<Graph> graph = capture->end();
    expect_ok(graph);
    expect_ok(rank.comm->close());  // the graph has nothing of it
  });
}

// Whoever ends the capture.
TEST_F(Together, AreComparedEachWithTheirOwnOnOtherRanks) {
  create_two();
  may_differ_ = true;
  on_all([this](Rank& rank) {
    for (const bool other_ends : {false, true}) {
      GraphPool pool(*rank.heap);
      Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
      expect_ok(capture);
      void* const block = rank.allocate(kSize, rank.compute);
      void* const next = rank.allocate(kSize, rank.compute);
      const auto one_less = kCount - static_cast<std::uint64_t>(rank.number);
      const Operation same = sum_of(block), differs = sum_of(next, one_less);
      expect_ok(rank.comm->run(other_ends ? differs : same, overlapped(rank.compute)));
      if (!other_ends) expect_ok(other(rank).run(differs, overlapped(rank.compute)));
      rank.free(block);
      rank.free(next);
      expect_error((other_ends ? other(rank) : *rank.comm).end_capture(*capture),
                   ErrorCode::capture, "captured other operations");
    }
  });
}

TEST_F(Together, AreAllWatchedAndAskedBeforeALaunch) {
  create_two();
  on_all([this](Rank& rank) {
    GraphPool pool(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    use_both(rank);
    Result<Graph> graph = rank.comm->end_capture(*capture);
    expect_ok(graph);
    for (int launch = 0; launch < 3; ++launch) expect_ok(rank.comm->launch(*graph, rank.compute));
    rank.device.finish();
    other(rank).abort("for a test");
    expect_error(rank.comm->launch(*graph, rank.compute), ErrorCode::device, "for a test");
    expect_ok(rank.comm->status());
  });
}

// The watchdog of one of them can't see the launch's end.
TEST_F(Together, ALaunchThatOneOfThemCannotWatchIsAnError) {
  create_two();
  on_all([this](Rank& rank) {
    GraphPool pool(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    use_both(rank);
    Result<Graph> graph = rank.comm->end_capture(*capture);
    expect_ok(graph);
    const std::uint64_t before = rank.device.calls(DeviceCall::record);
    expect_ok(rank.comm->launch(*graph, rank.compute));
    const std::uint64_t records = rank.device.calls(DeviceCall::record) - before;
    for (const std::uint64_t nth : {records, records - 1}) {  // the other's, and its own
      rank.device.fail(DeviceCall::record, nth);
      expect_error(rank.comm->launch(*graph, rank.compute), ErrorCode::device, "record");
    }
    expect_ok(rank.comm->launch(*graph, rank.compute));
  });
}

// Locks are taken in one order, whatever the order of the parts. Operations are all alike, so that
// ranks whose threads interleave otherwise still ask for the same.
TEST_F(Together, MayBeAskedForByThreadsInAnyOrderOfParts) {
  create_two();
  on_all([this](Rank& rank) {
    const auto ask = [&](bool reversed) {
      for (int i = 0; i < 200; ++i) {
        void* const mine = rank.allocate(4_KiB, rank.compute);
        void* const its = rank.allocate(4_KiB, rank.compute);
        const Operation first_sum = sum_of(mine, 16), second_sum = sum_of(its, 16);
        Communicator &first = reversed ? other(rank) : *rank.comm,
                     &second = reversed ? *rank.comm : other(rank);
        expect_ok(Communicator::run_together(
            std::vector<Communicator::Part>{{first, {&first_sum, 1}}, {second, {&second_sum, 1}}},
            overlapped(rank.compute)));
        rank.free(mine);
        rank.free(its);
      }
    };
    std::thread reversed([&] { ask(true); });
    ask(false);
    reversed.join();
  });
}

}  // namespace
}  // namespace weir
