// SPDX-License-Identifier: Apache-2.0
// Operations inside captures: forked and joined, in graphs that run. Scenarios A and D have every
// kind in every mode, as the first of all.
#include <atomic>
#include <thread>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::begin;
using test::expect_error;
using test::expect_ok;
using test::got;
using test::kCount;
using test::kSize;
using test::Rank;
using testing::HasSubstr;

class CapturedCollectives : public test::CommRanks {
 protected:
  CapturedCollectives() = default;
  explicit CapturedCollectives(SimWorldOptions options, int ranks = 2)
      : CommRanks(ranks, options) {}

  static std::uint64_t wrong_reads(Rank& rank, const Graph& graph) {
    std::uint64_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      wrong += rank.device.replay_in_random_order(graph.graph(), seed);
    }
    return wrong;
  }
};

class NotConnected : public CapturedCollectives {
 protected:
  NotConnected() : CapturedCollectives({.connects_at_once = false}, 32) {}
};

TEST_F(NotConnected, PrepareConnectsWhatNcclWouldConnectAtFirstUseInAFixedAmountOfMemory) {
  create();
  prepare();
  // 32 MiB, so that NCCL takes what it takes for large ones, sent and received.
  for (const auto& rank : ranks_) EXPECT_LE(rank->device.physical_peak(), 66_MiB);
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    void* const block = rank.allocate(kSize, rank.compute);
    expect_ok(rank.sum(block, kSize, rank.compute));
    rank.free(block);
    Graph graph = got(rank.comm->end_capture(capture));
  });
}

TEST_F(CapturedCollectives, OnForkedStreamsAreJoinedAndMemoryIsSharedInOrder) {
  create();
  prepare();
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    for (int step = 0; step < 8; ++step) {
      void* const block = rank.allocate(kSize, rank.compute);
      rank.write(rank.compute, block, kSize);
      const Result<Work> work = rank.sum(block, kSize, rank.compute);
      expect_ok(work);
      // The side stream joins the capture by waiting.
      expect_ok(work->wait(rank.side));
      rank.read(rank.side, block, kSize);
      expect_ok(rank.heap->fence(block, rank.side));
      rank.free(block);
    }
    const EventHandle end = *rank.device.create_event();
    expect_ok(rank.device.record(end, rank.side));
    expect_ok(rank.device.wait(rank.compute, end));
    Graph graph = got(rank.comm->end_capture(capture));
    expect_ok(rank.device.destroy_event(end));
    EXPECT_EQ(wrong_reads(rank, graph), 0u);
    EXPECT_LE(pool.statistics().reserved_bytes, kSize * 2);
    expect_ok(rank.comm->launch(graph, rank.compute));
    rank.device.finish();
  });
}

TEST_F(CapturedCollectives, WorksMayNotBeWaitedForFromElsewhere) {
  create();
  prepare();
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap), other_pool(*rank.heap);
    void* const eager = rank.allocate(kSize, rank.side);
    const Result<Work> before = rank.sum(eager, kSize, rank.side);
    expect_ok(before);
    Work captured;
    {
      CaptureScope capture = begin(rank, pool);
      expect_error(before->wait(rank.compute), ErrorCode::capture,
                   "wait before the capture begins");
      void* const block = rank.allocate(kSize, rank.compute);
      captured = *rank.sum(block, kSize, rank.compute);
      Result<CaptureScope> other = CaptureScope::begin(other_pool, rank.side);
      expect_ok(other);
      expect_error(captured.wait(rank.side), ErrorCode::capture, "another graph");
      expect_ok(other->end());
      rank.free(block);
      Result<Graph> graph = rank.comm->end_capture(capture);  // neither is broken
      expect_ok(graph);
    }
    expect_error(captured.wait(rank.side), ErrorCode::capture, "is over");
    rank.free(eager);
  });
}

TEST_F(CapturedCollectives, InACaptureThatNoPoolServesAreRefusedAndItGoesOn) {
  create();
  prepare();
  Rank& rank = *ranks_[0];
  void* const block = rank.allocate(kSize, rank.side);
  ASSERT_TRUE(rank.device.begin_capture(rank.compute, CaptureMode::global).ok());
  expect_error(rank.sum(block, kSize, rank.compute), ErrorCode::capture, "no graph pool serves");
  rank.write(rank.compute, block, kSize);
  const Result<GraphHandle> graph = rank.device.end_capture(rank.compute);
  expect_ok(graph);
  expect_ok(rank.device.destroy_graph(*graph));
  rank.free(block);
}

TEST_F(CapturedCollectives, InACaptureThatIsBrokenSayThatItWasBrokenBefore) {
  create();
  prepare();
  Rank& rank = *ranks_[0];
  GraphPool pool(*rank.heap);
  CaptureScope capture = begin(rank, pool);
  void* const block = rank.allocate(kSize, rank.compute);
  const EventHandle captured = *rank.device.create_event();
  expect_ok(rank.device.record(captured, rank.compute));
  EXPECT_FALSE(rank.device.query(captured).ok());  // breaks it
  expect_error(rank.sum(block, kSize, rank.compute), ErrorCode::capture,
               "broken by an earlier call");
  rank.free(block);
  EXPECT_FALSE(capture.end().ok());
  expect_ok(rank.comm->status());
  expect_ok(rank.device.destroy_event(captured));
}

class CapturedPipeline : public CapturedCollectives {
 protected:
  CapturedPipeline() : CapturedCollectives({}, 3) {}
};

// The ranks at its ends have one operation, those between two.
TEST_F(CapturedPipeline, MayHaveAnotherNumberOfSendsOnEachRank) {
  create();
  prepare();
  on_all([&](Rank& rank) {
    const int last = static_cast<int>(ranks_.size()) - 1;
    GraphPool pool(*rank.heap);
    void* const block = rank.allocate(kSize, rank.compute);
    rank.write(rank.compute, block, kSize);
    CaptureScope capture = begin(rank, pool);
    std::vector<Operation> group;
    if (rank.number < last) {
      group.push_back({.kind = OperationKind::send,
                       .send = block,
                       .count = kSize.count / 4,
                       .peer = rank.number + 1});
    }
    void* const from_before = rank.allocate(kSize, rank.compute);
    if (rank.number > 0) {
      group.push_back({.kind = OperationKind::receive,
                       .receive = from_before,
                       .count = kSize.count / 4,
                       .peer = rank.number - 1});
    }
    expect_ok(rank.comm->run(group, rank.compute));
    rank.free(from_before);
    expect_ok(rank.comm->end_capture(capture));
    rank.free(block);
  });
}

class CapturesOfSeveral : public CapturedCollectives {
 protected:
  // A communicator of all ranks, or of those of one color.
  static Communicator split(Rank& rank, const std::string& name, int color = 0) {
    Result<std::optional<Communicator>> made =
        rank.comm->split(color, rank.number, {.name = name, .watch_every = {}});
    expect_ok(made);
    expect_ok((*made)->prepare());
    return *std::move(*made);
  }
  static void sum(Rank& rank, Communicator& comm, std::uint64_t count = kCount) {
    void* const block = rank.allocate(kSize, rank.compute);
    expect_ok(
        comm.all_reduce(block, block, count, DataType::float32, {}, overlapped(rank.compute)));
    rank.free(block);
  }
};

// They do not wait for each other, so that nobody need have one order.
TEST_F(CapturesOfSeveral, MayMeetThemInAnotherOrderOnEachRank) {
  create();
  prepare();
  on_all([](Rank& rank) {
    Communicator two[] = {split(rank, "a"), split(rank, "b")};
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    sum(rank, two[rank.number]);
    sum(rank, two[1 - rank.number]);
    expect_ok(rank.comm->end_capture(capture));
    for (Communicator& each : two) expect_ok(each.close());
  });
}

TEST_F(CapturesOfSeveral, ThatDifferAreLaunchedByNoneAndNoneOfThemEnds) {
  create();
  prepare();
  may_differ_ = true;
  on_all([](Rank& rank) {
    Communicator other = split(rank, "other"), alone = split(rank, "alone", rank.number);
    GraphPool pool(*rank.heap);
    const auto expect_refused = [&](int others, const std::string& says,
                                    std::uint64_t count = kCount) {
      CaptureScope capture = begin(rank, pool);
      sum(rank, *rank.comm, count);
      sum(rank, alone);  // another communicator on each rank, though of one name
      for (int i = 0; i < others; ++i) sum(rank, other);
      expect_error(rank.comm->end_capture(capture), ErrorCode::capture, says);
    };
    expect_refused(1 + rank.number,
                   "rank 1 captured other operations of 'other' than rank 0 (2 and 1 of them");
    expect_refused(rank.number, rank.number == 0
                                    ? "1 of 2 ranks have captured operations of another"
                                    : "1 of 2 ranks have captured operations of 'other'");
    expect_refused(0, "rank 1 captured other operations than rank 0 (1 and 1 of them",
                   rank.number == 1 ? kCount / 2 : kCount);
    expect_refused(0, "rank 1 captured other operations than rank 0 (1 and 1 of them",
                   static_cast<std::uint64_t>(1000 + rank.number));  // 3.91 KiB, both
    CaptureScope capture = begin(rank, pool);
    sum(rank, alone);
    expect_ok(rank.comm->end_capture(capture));
    for (Communicator* each : {&other, &alone}) expect_ok(each->close());
  });
}

// What was captured is known until the ranks have agreed on it, whatever is captured meanwhile.
TEST_F(CapturesOfSeveral, AreAgreedOnWhileAnotherIsCaptured) {
  create();
  prepare();
  std::atomic<bool> captured = false;
  on_all([&](Rank& rank) {
    GraphPool first_pool(*rank.heap), second_pool(*rank.heap);
    CaptureScope first = begin(rank, first_pool, CaptureMode::relaxed);
    sum(rank, *rank.comm);
    std::optional<CaptureScope> second;
    const auto capture_second = [&] {
      second.emplace(*CaptureScope::begin(second_pool, rank.side, CaptureMode::relaxed));
      void* const block = rank.allocate(kSize, rank.side);
      for (int i = 0; i < 2; ++i) expect_ok(rank.sum(block, kSize, rank.side));
      rank.free(block);
    };
    Graph graph;
    if (rank.number == 0) {
      // Ended here, and agreed on once rank 1 comes: after the second has its operations.
      std::thread ends([&] { graph = *rank.comm->end_capture(first); });
      while (rank.device.calls(DeviceCall::end_capture) == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      capture_second();
      captured = true;
      ends.join();
    } else {
      while (!captured) std::this_thread::yield();
      capture_second();
      graph = *rank.comm->end_capture(first);
    }
    expect_ok(rank.comm->end_capture(*second));
  });
}

TEST_F(CapturedCollectives, CostNoEventThatNobodyWaitsFor) {
  create();
  prepare();
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    void* const block = rank.allocate(kSize, rank.compute);
    void* const other = rank.allocate(kSize, rank.compute);
    const std::uint64_t events = rank.device.live().events;
    CaptureScope capture = begin(rank, pool);
    for (int i = 0; i < 100; ++i) {
      expect_ok(rank.comm->all_reduce(block, block, kCount, DataType::float32, {}, rank.compute));
      expect_ok(rank.sum(other, kSize, rank.compute));
    }
    EXPECT_LE(rank.device.live().events, events + 4);
    expect_ok(rank.comm->end_capture(capture));
    for (void* const each : {block, other}) rank.free(each);
  });
}

TEST_F(CapturedCollectives, OfACommunicatorThatHasEndedDoNotWaitLongForOtherRanks) {
  create();
  prepare();
  Rank& rank = *ranks_[0];
  rank.comm->abort("a test");
  const auto begin_of_wait = std::chrono::steady_clock::now();
  for (int round = 0; round < 3; ++round) {
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    expect_error(rank.comm->end_capture(capture), ErrorCode::device, "aborted: a test");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin_of_wait, std::chrono::seconds(5));
}

}  // namespace
}  // namespace weir
