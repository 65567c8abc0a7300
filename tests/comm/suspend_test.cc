// SPDX-License-Identifier: Apache-2.0
// Communicators that give NCCL's memory away for a while: beside memory that sleeps, with graphs,
// and with ranks that don't come.
#include <chrono>
#include <string>
#include <utility>

#include "tests/comm/ranks.h"
#include "weir/sleep.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::kCount;
using test::kSize;
using test::Rank;

class Suspended : public test::CommRanks {
 protected:
  Suspended() : CommRanks(2) {}
  explicit Suspended(SimWorldOptions options) : CommRanks(2, options) {}
};

TEST_F(Suspended, CommunicatorsRefuseAllUntilTheyAreResumed) {
  create();
  prepare();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kSize, rank.compute);
    rank.write(rank.compute, block, kSize);
    expect_ok(rank.sum(block, kSize, rank.compute));
    expect_ok(rank.comm->resume());  // it never was away
    const std::uint64_t waits = rank.device.calls(DeviceCall::synchronize_context);
    expect_ok(rank.comm->suspend());
    EXPECT_GT(rank.device.calls(DeviceCall::synchronize_context), waits);
    expect_ok(rank.comm->suspend());
    const auto expect_suspended = [](const auto& outcome) {
      expect_error(outcome, ErrorCode::invalid_argument, "it is suspended: resume() it first");
    };
    expect_suspended(rank.sum(block, kSize, rank.compute));
    const Operation sum{OperationKind::all_reduce, block, block, kCount, DataType::float32, {}};
    const Communicator::Part part{*rank.comm, {&sum, 1}};
    expect_suspended(Communicator::run_together({&part, 1}, rank.compute));
    expect_suspended(rank.comm->prepare());
    expect_suspended(rank.comm->split(0, 0));
    const int other[] = {1 - rank.number};
    expect_suspended(rank.comm->shrink(other));
    expect_ok(rank.comm->status());
    expect_ok(rank.comm->poll());
    rank.free(block);
  });
  EXPECT_EQ(world_.suspended_communicators(), 4u) << "with those that ranks agree with";
  on_all([](Rank& rank) {
    expect_ok(rank.comm->resume());
    expect_ok(rank.comm->resume());
    void* const block = rank.allocate(kSize, rank.compute);
    rank.write(rank.compute, block, kSize);
    expect_ok(rank.sum(block, kSize, rank.compute));
    rank.free(block);
  });
  EXPECT_EQ(world_.suspended_communicators(), 0u);
}

TEST_F(Suspended, ARankSleepsMeanwhileAndItsGraphsLaunchAfterwards) {
  create();
  prepare();
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    CaptureScope capture = *CaptureScope::begin(pool, rank.compute);
    void* const block = rank.allocate(kSize, rank.compute);
    rank.write(rank.compute, block, kSize);
    expect_ok(rank.comm->all_reduce(block, block, kCount, DataType::float32, {}, rank.compute));
    Result<Graph> graph = rank.comm->end_capture(capture);
    expect_ok(graph);
    for (int cycle = 0; cycle < 3; ++cycle) {
      expect_ok(rank.comm->launch(*graph, rank.compute));
      expect_ok(rank.comm->suspend());
      expect_ok(rank.heap->sleep());
      expect_error(rank.comm->launch(*graph, rank.compute), ErrorCode::invalid_argument,
                   "it is suspended");
      expect_ok(rank.heap->wake());
      expect_error(rank.comm->launch(*graph, rank.compute), ErrorCode::invalid_argument,
                   "it is suspended");
      expect_ok(rank.comm->resume());
    }
    expect_ok(rank.comm->launch(*graph, rank.compute));
    expect_ok(rank.heap->deallocate(block));
    rank.device.finish();
  });
}

TEST_F(Suspended, OneOfSeveralIsRefusedInAGroupAndNoneRuns) {
  create();
  on_all([](Rank& rank) {
    Result<std::optional<Communicator>> other = rank.comm->split(0, rank.number, {.name = "other"});
    expect_ok(other);
    void* const block = rank.allocate(kSize, rank.compute);
    const Operation sum{OperationKind::all_reduce, block, block, kCount, DataType::float32, {}};
    const Communicator::Part parts[] = {{*rank.comm, {&sum, 1}}, {**other, {&sum, 1}}};
    expect_ok((*other)->suspend());
    expect_error(Communicator::run_together(parts, rank.compute), ErrorCode::invalid_argument,
                 "communicator 'other'");
    expect_ok((*other)->resume());
    expect_ok(Communicator::run_together(parts, rank.compute));
    rank.free(block);
    rank.device.finish();
    expect_ok((*other)->close());
  });
}

TEST_F(Suspended, WhatNcclRefusesLeavesACommunicatorThatWorksOrIsTriedAgain) {
  create();
  prepare();
  for (int rank = 0; rank < 2; ++rank) world_.fail(rank, NcclCall::suspend, 1);
  on_all([](Rank& rank) {
    expect_error(rank.comm->suspend(), ErrorCode::device, "suspend: made to fail");
    void* const block = rank.allocate(kSize, rank.compute);
    expect_ok(rank.sum(block, kSize, rank.compute));
    rank.free(block);
  });
  // The second of the two communicators: the first is away by then.
  for (int rank = 0; rank < 2; ++rank) world_.fail(rank, NcclCall::suspend, 2);
  on_all([](Rank& rank) {
    expect_error(rank.comm->suspend(), ErrorCode::device, "made to fail");
    expect_error(rank.comm->split(0, 0), ErrorCode::invalid_argument, "it is suspended");
  });
  EXPECT_EQ(world_.suspended_communicators(), 2u);
  on_all([](Rank& rank) { expect_ok(rank.comm->suspend()); });
  EXPECT_EQ(world_.suspended_communicators(), 4u);
  for (int rank = 0; rank < 2; ++rank) world_.fail(rank, NcclCall::resume, 2);
  on_all([](Rank& rank) {
    expect_error(rank.comm->resume(), ErrorCode::device, "resume: made to fail");
    expect_error(rank.comm->split(0, 0), ErrorCode::invalid_argument, "it is suspended");
    expect_ok(rank.comm->resume());
    expect_ok(rank.comm->status());
  });
  EXPECT_EQ(world_.suspended_communicators(), 0u);
}

// Nothing is asked of NCCL or of the device any more.
TEST_F(Suspended, OneThatHasEndedSaysSoToEveryCall) {
  for (const bool closes : {true, false}) {
    create();
    prepare();
    on_all([closes](Rank& rank) {
      void* const block = rank.allocate(kSize, rank.compute);
      if (closes) {
        expect_ok(rank.comm->close());
      } else {
        rank.comm->abort("for the test");
      }
      const std::uint64_t waits = rank.device.calls(DeviceCall::synchronize_context);
      const auto expect_ended = [closes](const auto& outcome) {
        expect_error(outcome, closes ? ErrorCode::invalid_argument : ErrorCode::device,
                     closes ? "it was closed" : "for the test");
      };
      expect_ended(rank.comm->suspend());
      expect_ended(rank.comm->resume());
      expect_ended(rank.comm->prepare());
      expect_ended(rank.comm->split(0, 0));
      expect_ended(rank.sum(block, kSize, rank.compute));
      expect_ended(rank.comm->status());
      expect_ended(rank.comm->poll());
      EXPECT_EQ(rank.device.calls(DeviceCall::synchronize_context), waits);
      rank.free(block);
    });
    on_all([](Rank& rank) { rank.comm.reset(); });
  }
}

TEST_F(Suspended, ACommunicatorIsResumedBeforeItEnds) {
  create();
  prepare();
  on_all([](Rank& rank) {
    expect_ok(rank.comm->suspend());
    expect_ok(rank.comm->close());
  });
  EXPECT_EQ(world_.live_communicators(), 0u);
  EXPECT_EQ(world_.suspended_communicators(), 0u);
}

// What failed is not resumed: it ends as it is.
TEST_F(Suspended, OneThatFailedEndsWithoutAnError) {
  create();
  prepare();
  on_all([](Rank& rank) {
    expect_ok(rank.comm->suspend());
    rank.comm->abort("for the test");
    expect_ok(rank.comm->close());
  });
  EXPECT_EQ(world_.live_communicators(), 0u);
  EXPECT_EQ(world_.suspended_communicators(), 0u);
}

// Both of NCCL's communicators go, the one that ranks agree with too.
TEST_F(Suspended, OneThatCannotBeResumedEndsWithAnErrorAndLeavesNothing) {
  for (const bool aborts : {true, false}) {
    for (const std::uint64_t nth : {1, 2}) {
      create({.aborts = aborts});
      prepare();
      on_all([](Rank& rank) { expect_ok(rank.comm->suspend()); });
      for (int rank = 0; rank < 2; ++rank) world_.fail(rank, NcclCall::resume, nth);
      on_all([](Rank& rank) {
        const std::string why = "communicator 'world', rank " + std::to_string(rank.number) +
                                " of 2: close: resume: made to fail";
        EXPECT_EQ(rank.comm->close().error().message(), why);
        expect_ok(rank.comm->close());
        EXPECT_EQ(rank.comm->status().error().message(), why);
      });
      EXPECT_EQ(world_.live_communicators(), 0u) << aborts << " " << nth;
      EXPECT_EQ(world_.suspended_communicators(), 0u) << aborts << " " << nth;
    }
  }
}

TEST_F(Suspended, OfOneThatFailedShrinkMakesAnotherAllTheSame) {
  create();
  on_all([](Rank& rank) { expect_ok(rank.comm->suspend()); });
  Rank& rank = *ranks_[0];
  rank.comm->abort("for the test");
  expect_error(rank.comm->resume(), ErrorCode::device, "for the test");
  const int other[] = {1};
  Result<Communicator> alone = rank.comm->shrink(other);
  expect_ok(alone);
  if (alone) expect_ok(alone->close());
  ranks_[1]->comm->abort("for the test");
}

class LateRanks : public Suspended {
 protected:
  LateRanks() : Suspended({.host_timeout = std::chrono::milliseconds(3000)}) {}
};

TEST_F(LateRanks, AreAnErrorInTimeAndTheCommunicatorEnds) {
  Rank& rank = *ranks_[0];
  const UniqueId id = *rank.nccl->unique_id();
  on_all([&](Rank& each) {
    Result<Communicator> made =
        Communicator::create(each.context(), id, 2, each.number,
                             {.host_timeout = Nanoseconds{1'500'000'000}, .watch_every = {}});
    expect_ok(made);
    if (made) each.comm = *std::move(made);
  });
  expect_error(rank.comm->suspend(), ErrorCode::device, "suspend: not all ranks came in time");
  expect_error(rank.comm->status(), ErrorCode::device, "not all ranks came in time");
}

class OldNccl : public Suspended {
 protected:
  OldNccl() : Suspended({.suspends = false}) {}
};

TEST_F(OldNccl, SaysThatItCannotAndTheCommunicatorWorks) {
  create();
  on_all([](Rank& rank) {
    expect_error(rank.comm->suspend(), ErrorCode::unavailable, "has no ncclCommSuspend");
    void* const block = rank.allocate(kSize, rank.compute);
    expect_ok(rank.sum(block, kSize, rank.compute));
    rank.free(block);
  });
}

}  // namespace
}  // namespace weir
