// SPDX-License-Identifier: Apache-2.0
// What may go wrong between captures, watchdogs and ranks, on two to four GPUs or on simulated
// ones.
#include "tests/comm/gpu_ranks.h"

namespace weir {
namespace {

using test::begin;
using test::expect_ok;
using test::got;
using test::GpuRank;
using test::kBytes;
using test::kLargest;
using test::largest;
using test::On;
using test::OnGpus;
using testing::HasSubstr;

constexpr Bytes kTroublePart = 1_MiB;

class Trouble : public OnGpus {};

TEST_P(Trouble, TheWatchdogDisturbsNoCapture) {
  create_prepared({.watch_every = 100_us});
  on_all([](GpuRank& rank) {
    void* const eager = rank.allocate(kTroublePart, rank.side);
    for (int round = 0; round < 100; ++round) {
      expect_ok(largest(rank, eager, kTroublePart, rank.side));
      GraphPool pool(*rank.heap);
      CaptureScope capture = begin(rank, pool);
      void* const block = rank.allocate(kTroublePart, rank.compute);
      expect_ok(largest(rank, block, kTroublePart, rank.compute));
      rank.free(block);
      expect_ok(rank.comm->end_capture(capture));
    }
    rank.free(eager);
  });
}

TEST_P(Trouble, ACaptureThatFailsOnOneRankIsLaunchedByNoneAndAllGoOn) {
  create_prepared();
  on_all([](GpuRank& rank) {
    {
      GraphPool pool(*rank.heap);
      CaptureScope capture = begin(rank, pool);
      void* const block = rank.allocate(kTroublePart, rank.compute);
      expect_ok(largest(rank, block, kTroublePart, rank.compute));
      rank.free(block);
      const EventHandle captured = *rank.device().create_event();
      if (rank.number == 1) {  // breaks its capture
        expect_ok(rank.device().record(captured, rank.compute));
        EXPECT_FALSE(rank.device().query(captured).ok());
      }
      const Result<Graph> graph = rank.comm->end_capture(capture);
      ASSERT_FALSE(graph.ok());
      EXPECT_THAT(graph.error().message(), HasSubstr("failed on rank 1"));
      expect_ok(rank.device().destroy_event(captured));
    }
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    void* const block = rank.allocate(kTroublePart, rank.compute);
    rank.write(rank.compute, block, kTroublePart, 5);
    expect_ok(got(largest(rank, block, kTroublePart, rank.compute)).wait(rank.compute));
    rank.check(rank.compute, block, kTroublePart, 5);
    rank.free(block);
    Graph graph = got(rank.comm->end_capture(capture));
    expect_ok(rank.comm->launch(graph, rank.compute));
    rank.finish();
  });
}

TEST_P(Trouble, ThatEndsACommunicatorOnOneRankIsToldToTheOthersAtOnce) {
  create_prepared();
  const auto begin_of_wait = std::chrono::steady_clock::now();
  on_all([](GpuRank& rank) {
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    if (rank.number == 1) rank.comm->abort("a test");
    const Result<Graph> graph = rank.comm->end_capture(capture);
    ASSERT_FALSE(graph.ok());
    EXPECT_THAT(graph.error().message(), HasSubstr("rank 1 of"));
    EXPECT_THAT(graph.error().message(), HasSubstr("aborted: a test"));
    rank.comm->abort("the test ends");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin_of_wait, std::chrono::seconds(60))
      << "the host_timeout is 120 s";
}

TEST_P(Trouble, OfThreeCommunicatorsWithGraphsAndEagerOperationsInOneOrderIsNone) {
  create_prepared();
  on_all([](GpuRank& rank) {
    std::vector<Communicator> all;
    for (int i = 0; i < 2; ++i) {
      Result<std::optional<Communicator>> made = rank.comm->split(0, rank.number);
      expect_ok(made);
      if (!made) return;
      all.push_back(*std::move(*made));
      expect_ok(all.back().prepare());
    }
    GraphPool pool(*rank.heap);
    std::vector<Graph> graphs;
    for (Communicator& comm : all) {
      CaptureScope capture = begin(rank, pool);
      void* const block = rank.allocate(kTroublePart, rank.compute);
      rank.write(rank.compute, block, kTroublePart, 9);
      expect_ok(got(comm.all_reduce(block, block, kTroublePart.count, kBytes, kLargest,
                                    overlapped(rank.compute)))
                    .wait(rank.compute));
      rank.check(rank.compute, block, kTroublePart, 9);
      rank.free(block);
      Graph graph = got(comm.end_capture(capture));
      graphs.push_back(std::move(graph));
    }
    void* const eager = rank.allocate(kTroublePart, rank.compute);
    for (int round = 0; round < 200; ++round) {
      const auto which = static_cast<std::size_t>(round * 7 % 3);
      if (which < graphs.size()) expect_ok(all[which].launch(graphs[which], rank.compute));
      expect_ok(got(largest(rank, eager, kTroublePart, rank.compute)).wait(rank.compute));
    }
    rank.finish();
    rank.free(eager);
    graphs.clear();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Trouble, testing::Values(On::simulated, On::gpus),
                         [](const auto& info) { return test::name_of(info.param); });

}  // namespace
}  // namespace weir
