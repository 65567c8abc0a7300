// SPDX-License-Identifier: Apache-2.0
// Eager operations: order, fences, memory. Operations on the caller's stream do without what
// overlapped ones need beside them.
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

Result<Work> sum(Communicator& comm, void* block, Where where) {
  return comm.all_reduce(block, block, kCount, DataType::float32, {}, where);
}

class OnTheCallersStream : public test::CommRanks {
 protected:
  OnTheCallersStream() : CommRanks(2) {}
};

// The watchdog's record; with overlap, the fence's and that which the communication stream waits
// for.
TEST_F(OnTheCallersStream, OperationsCostOneRecordAndNoWaitOverlappedOnesThreeAndOne) {
  create();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kSize, rank.compute);
    for (const bool overlaps : {false, true}) {
      const Where where = overlaps ? overlapped(rank.compute) : Where(rank.compute);
      expect_ok(sum(*rank.comm, block, where));
      const std::uint64_t records = rank.device.calls(DeviceCall::record);
      const std::uint64_t waits = rank.device.calls(DeviceCall::wait);
      const std::uint64_t events = rank.device.calls(DeviceCall::create_event);
      for (int i = 0; i < 100; ++i) expect_ok(sum(*rank.comm, block, where));
      EXPECT_EQ(rank.device.calls(DeviceCall::record), records + (overlaps ? 300 : 100));
      EXPECT_EQ(rank.device.calls(DeviceCall::wait), waits + (overlaps ? 100 : 0));
      EXPECT_LE(rank.device.calls(DeviceCall::create_event), events + 300);
    }
    EXPECT_EQ(rank.device.calls(DeviceCall::query), 0u);
    EXPECT_EQ(rank.device.host_waits(), 0u);
    rank.free(block);
  });
}

TEST_F(OnTheCallersStream, BuffersMayGoAtOnceAndTheNextHasTheirBytes) {
  create();
  on_all([](Rank& rank) {
    for (int step = 0; step < 10; ++step) {
      void* const block = rank.allocate(kSize, rank.compute);
      rank.write(rank.compute, block, kSize);
      expect_ok(sum(*rank.comm, block, rank.compute));
      rank.free(block);
    }
    EXPECT_EQ(rank.device.host_waits(), 0u);
    EXPECT_EQ(rank.device.physical_peak(), kSize);
  });
}

// Each record of an operation is refused in turn: the watchdog's, the fence's, the fork's.
TEST_F(OnTheCallersStream, BlocksAreFencedThoughTheDeviceRefusesAnEvent) {
  for (std::uint64_t nth = 1; nth <= 4; ++nth) {
    for (const bool overlaps : {false, true}) {
      create();
      on_all([&](Rank& rank) {
        void* const block = rank.allocate(kSize, rank.side);
        rank.write(rank.side, block, kSize, 1_us);
        expect_ok(rank.heap->order(rank.side, rank.compute));
        if (rank.number == 0) rank.device.fail(DeviceCall::record, nth);
        (void)sum(*rank.comm, block, overlaps ? overlapped(rank.compute) : Where(rank.compute));
        (void)rank.device.forget_faults();
        rank.free(block);
        void* const next = rank.allocate(kSize, rank.side);
        rank.write(rank.side, next, kSize, 1_us);  // a race, were the fence left out
        rank.free(next);
        (void)rank.comm->close();
      });
    }
  }
}

TEST_F(OnTheCallersStream, BlocksOfAGroupThatIsRefusedHalfWayAreFenced) {
  may_differ_ = true;
  for (const bool captures : {true, false}) {
    create();
    prepare();
    world_.fail(0, NcclCall::enqueue, 2);  // the second of the group
    on_all([&](Rank& rank) {
      GraphPool pool(*rank.heap);
      std::optional<CaptureScope> capture;
      if (captures) capture.emplace(begin(rank, pool));
      void* const first = rank.allocate(kSize, rank.compute);
      void* const second = rank.allocate(kSize, rank.compute);
      const Operation sum_of_first{.send = first, .receive = first, .count = kCount};
      const Operation sum_of_second{.send = second, .receive = second, .count = kCount};
      const Operation group[] = {sum_of_first, sum_of_second};
      EXPECT_EQ(rank.comm->run(group, overlapped(rank.compute)).ok(), rank.number == 1);
      rank.free(first);
      rank.free(second);
      void* const next = rank.allocate(kSize * 2, rank.compute);
      rank.write(rank.compute, next, kSize * 2);  // a race, were the fence left out
      rank.free(next);
      EXPECT_TRUE(!capture || capture->end().ok());
      rank.comm->abort("a test");
    });
  }
}

TEST_F(OnTheCallersStream, OtherStreamsMayWaitForWorks) {
  create();
  prepare();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kSize, rank.compute);
    rank.write(rank.compute, block, kSize);
    const Result<Work> work = sum(*rank.comm, block, rank.compute);
    expect_ok(work);
    const std::uint64_t records = rank.device.calls(DeviceCall::record);
    expect_ok(work->wait(rank.compute));  // which has it
    EXPECT_EQ(rank.device.calls(DeviceCall::record), records);
    expect_ok(work->wait(rank.side));
    rank.read(rank.side, block, kSize);  // a race, were the wait left out
    expect_ok(rank.heap->fence(block, rank.side));
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    expect_ok(work->wait(rank.side));  // the point was recorded before the capture began
    expect_error(work->wait(rank.compute), ErrorCode::capture, "the work was eager");
    expect_ok(capture.end());
    expect_ok(work->wait(rank.side));
    rank.free(block);
  });
}

TEST_F(OnTheCallersStream, WorksMayBeWaitedForOnceTheStreamIsGone) {
  create();
  on_all([](Rank& rank) {
    const Stream gone = rank.device.new_stream();
    void* const block = rank.allocate(kSize, gone);
    const Result<Work> work = sum(*rank.comm, block, gone);
    expect_ok(work);
    rank.free(block);
    expect_ok(rank.heap->retire(gone));
    expect_ok(rank.device.destroy_stream(gone));
    expect_ok(work->wait(rank.compute));
    EXPECT_EQ(rank.device.uses_of_destroyed_streams(), 0u);
  });
}

TEST_F(OnTheCallersStream, CapturesForkNoStreamAndRunInOrder) {
  create();
  prepare();
  const std::uint64_t streams = world_.counts().streams;
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    for (int layer = 0; layer < 4; ++layer) {
      void* const block = rank.allocate(kSize, rank.compute);
      rank.write(rank.compute, block, kSize);
      const Result<std::vector<GraphNode>> before = rank.device.capture_tips(rank.compute);
      const Result<Work> work = sum(*rank.comm, block, rank.compute);
      expect_ok(work);
      EXPECT_TRUE(work->captured());
      const Result<std::vector<GraphNode>> after = rank.device.capture_tips(rank.compute);
      expect_ok(after);
      // One node more, behind the one that was last.
      ASSERT_EQ(after->size(), 1u);
      const Result<std::vector<GraphNode>> behind = rank.device.node_dependencies(after->front());
      expect_ok(behind);
      EXPECT_EQ(*behind, *before);
      rank.read(rank.compute, block, kSize);
      rank.free(block);
    }
    Graph graph = got(rank.comm->end_capture(capture));
    std::uint64_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      wrong += rank.device.replay_in_random_order(graph.graph(), seed);
    }
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(pool.statistics().reserved_bytes, kSize);
    for (int launch = 0; launch < 3; ++launch) expect_ok(rank.comm->launch(graph, rank.compute));
    rank.device.finish();
    expect_error(rank.comm->close(), ErrorCode::invalid_argument, "1 graphs");
  });
  EXPECT_EQ(world_.counts().streams, streams);
}

TEST_F(OnTheCallersStream, OperationsAndOverlappedOnesShareACapture) {
  create();
  prepare();
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    for (int round = 0; round < 20; ++round) {
      CaptureScope capture = begin(rank, pool);
      for (int layer = 0; layer < 4; ++layer) {
        void* const block = rank.allocate(kSize, rank.compute);
        rank.write(rank.compute, block, kSize);
        if ((layer + round) % 2 == 0) {
          expect_ok(sum(*rank.comm, block, rank.compute));
        } else {
          expect_ok(rank.sum(block, kSize, rank.compute));
        }
        rank.free(block);
      }
      Graph graph = got(rank.comm->end_capture(capture));
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        EXPECT_EQ(rank.device.replay_in_random_order(graph.graph(), seed), 0u);
      }
      expect_ok(rank.comm->launch(graph, rank.compute));
      rank.device.finish();
    }
  });
  EXPECT_EQ(world_.counts().streams, 4u);  // an eager one and a captured one for each rank
}

// Each thread has a communicator of its own, and begins with another on each rank.
TEST_F(OnTheCallersStream, ThreadsWithACommunicatorEachMayComeInAnyOrder) {
  create();
  prepare();
  std::vector<std::optional<Communicator>> others(ranks_.size());
  on_all([&](Rank& rank) {
    Result<std::optional<Communicator>> made =
        rank.comm->split(0, rank.number, {.name = "other", .watch_every = {}});
    expect_ok(made);
    others.at(static_cast<std::size_t>(rank.number)) = std::move(*made);
    expect_ok(others.at(static_cast<std::size_t>(rank.number))->prepare());
  });
  on_all([&](Rank& rank) {
    Communicator& other = *others.at(static_cast<std::size_t>(rank.number));
    const auto work = [&rank](Communicator& comm) {
      const Stream mine = rank.device.new_stream();
      GraphPool pool(*rank.heap);
      for (int step = 0; step < 50; ++step) {
        void* const block = rank.allocate(kSize, mine);
        rank.write(mine, block, kSize, 1_us);
        expect_ok(sum(comm, block, mine));
        rank.free(block);
        if (step % 10 != 0) continue;
        Result<CaptureScope> capture = CaptureScope::begin(pool, mine, CaptureMode::thread_local_);
        expect_ok(capture);
        void* const captured = rank.allocate(kSize, mine);
        expect_ok(sum(comm, captured, mine));
        rank.free(captured);
        expect_ok(comm.end_capture(*capture));  // the ranks agree
      }
    };
    Communicator& first = rank.number == 0 ? *rank.comm : other;
    Communicator& second = rank.number == 0 ? other : *rank.comm;
    std::thread beside([&] { work(first); });
    work(second);
    beside.join();
  });
  on_all([&](Rank& rank) { others.at(static_cast<std::size_t>(rank.number)).reset(); });
}

// Under Trust::context a stream may be made to wait for all work of the context.
class UnderContext : public test::CommRanks {
 protected:
  UnderContext() : CommRanks(2) {
    Rank& rank = *ranks_.front();
    rank.heap = std::make_unique<DeviceHeap>(rank.device, HeapOptions{.trust = Trust::context});
  }
};

TEST_F(UnderContext, ARequestDoesNotWaitForARankThatHasNotCome) {
  create();
  Rank& rank = *ranks_.front();
  void* const summed = rank.allocate(kSize, rank.compute);
  void* const left = rank.allocate(kSize, rank.side);
  rank.write(rank.side, left, kSize);
  rank.free(left);
  rank.device.advance(10_ms);
  expect_ok(sum(*rank.comm, summed, rank.compute));
  const Stream other = rank.device.new_stream();
  void* const block = rank.allocate(kSize, other);
  rank.write(other, block, kSize);
  const EventHandle written = got(rank.device.create_event());
  expect_ok(rank.device.record(written, other));
  rank.device.advance(10_ms);
  EXPECT_TRUE(rank.device.finished(written)) << "it waits for rank 1";
  expect_ok(rank.device.destroy_event(written));
  Rank& late = *ranks_.back();
  void* const its = late.allocate(kSize, late.compute);
  expect_ok(sum(*late.comm, its, late.compute));
  on_all([](Rank& each) { each.device.finish(); });
  late.free(its);
  rank.free(block);
  rank.free(summed);
}

constexpr Bytes kLargeSize = 64_MiB;
constexpr std::uint64_t kLargeCount = kLargeSize.count / 4;

class EagerCollectives : public test::CommRanks {
 protected:
};

TEST_F(EagerCollectives, BlocksThatTheyOnlyReadOrOnlyWriteMayGoAtOnceToo) {
  create();
  on_all([](Rank& rank) {
    for (int step = 0; step < 4; ++step) {
      void* const sent = rank.allocate(kLargeSize, rank.compute);
      void* const received = rank.allocate(kLargeSize, rank.compute);
      rank.write(rank.compute, sent, kLargeSize);
      expect_ok(rank.comm->run({.kind = OperationKind::broadcast,
                                .send = sent,
                                .receive = received,
                                .count = kLargeCount,
                                .type = DataType::float32},
                               overlapped(rank.compute)));
      for (void* const block : {sent, received}) {
        rank.free(block);
        void* const next = rank.allocate(kLargeSize, rank.side);
        rank.write(rank.side, next, kLargeSize);  // a race, were the fence left out
        rank.free(next);
      }
    }
  });
}

TEST_F(EagerCollectives, ThatNobodyWaitsForAreSeenByTheChecker) {
  create();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kLargeSize, rank.compute);
    rank.write(rank.compute, block, kLargeSize);
    expect_ok(rank.sum(block, kLargeSize, rank.compute));
    rank.read(rank.compute, block, kLargeSize);  // without wait()
    EXPECT_GT(rank.device.race_count(), 0u);
    rank.free(block);
  });
  begin_anew();
}

TEST_F(EagerCollectives, TakePointersIntoTheMiddleOfBlocks) {
  create();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kLargeSize * 2, rank.compute);
    rank.write(rank.compute, block, kLargeSize * 2);
    auto* const mine = static_cast<std::byte*>(block) + kLargeSize.count * rank.number;
    const Result<Work> work = rank.comm->all_gather(mine, block, kLargeCount, DataType::float32,
                                                    overlapped(rank.compute));
    expect_ok(work);
    rank.free(block);
    void* const next = rank.allocate(kLargeSize * 2, rank.compute);
    rank.write(rank.compute, next, kLargeSize * 2);
    rank.free(next);
  });
}

TEST_F(EagerCollectives, OfNothingAreFine) {
  create();
  on_all([](Rank& rank) {
    const Where compute = overlapped(rank.compute);
    expect_ok(rank.comm->all_reduce(nullptr, nullptr, 0, DataType::int8, {}, compute));
    const Result<Work> nothing = rank.comm->run(std::span<const Operation>(), compute);
    expect_ok(nothing);
    expect_ok(nothing->wait(rank.side));
  });
}

TEST_F(EagerCollectives, ThatCannotBeAreNamedAndNothingIsQueued) {
  create();
  Rank& rank = *ranks_[0];
  const Where compute = overlapped(rank.compute);
  expect_error(
      rank.comm->run({OperationKind::broadcast, &rank, &rank, 1, DataType::int8, {}, 2}, compute),
      ErrorCode::invalid_argument,
      "communicator 'world', rank 0 of 2: broadcast of 1 B of int8, root 2: there is no "
      "rank 2");
  expect_error(rank.comm->all_reduce(nullptr, &rank, 1, DataType::int8, {}, compute),
               ErrorCode::invalid_argument, "send from is null");
  EXPECT_EQ(world_.operations(0), 0u);
  expect_ok(rank.comm->status());
}

class Threads : public EagerCollectives {};

TEST_F(Threads, OfOneRankMayAllCallAndMemoryStaysWhole) {
  create();
  may_differ_ = true;  // in whatever order
  on_all([](Rank& rank) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&rank] {
        const Stream mine = rank.device.new_stream();
        for (int step = 0; step < 50; ++step) {
          void* const block = rank.allocate(1_MiB, mine);
          rank.write(mine, block, 1_MiB, 1_us);
          const Result<Work> work =
              rank.comm->all_reduce(block, block, 100, DataType::float32, {}, overlapped(mine));
          expect_ok(work);
          if (step % 3 == 0) expect_ok(work->wait(mine));
          rank.free(block);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace weir
