// SPDX-License-Identifier: Apache-2.0
// Eager operations: order, fences, memory.

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::Rank;
using testing::IsEmpty;

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
      for (void* const block : {sent, received}) rank.free(block);
      void* const next[] = {rank.allocate(kLargeSize, rank.side),
                            rank.allocate(kLargeSize, rank.side)};
      for (void* const block : next) {
        rank.write(rank.side, block, kLargeSize);  // a race, were a fence left out
        rank.free(block);
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

TEST_F(EagerCollectives, LeaveMemoryThatIsNotTheHeapsToTheCaller) {
  create();
  on_all([](Rank& rank) {
    const Address outside = *rank.nccl->allocate_segment(2_MiB);
    const Result<Work> work = rank.comm->all_reduce(outside.pointer(), outside.pointer(), 100,
                                                    DataType::int32, {}, overlapped(rank.compute));
    expect_ok(work);
    rank.device.finish();
    expect_ok(rank.nccl->free_segment(outside));
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

TEST_F(EagerCollectives, ThatNcclRefusesEndTheCommunicatorAndMemoryIsWhole) {
  create();
  Rank& rank = *ranks_[0];
  world_.fail(0, NcclCall::enqueue, 1);
  void* const block = rank.allocate(kLargeSize, rank.compute);
  expect_error(rank.sum(block, kLargeSize, rank.compute), ErrorCode::device, "made to fail");
  expect_error(rank.sum(block, kLargeSize, rank.compute), ErrorCode::device,
               "made to fail");  // what ended it
  expect_error(rank.comm->status(), ErrorCode::device, "rank 0 of 2");
  rank.free(block);
  EXPECT_THAT(rank.heap->validate(), IsEmpty());
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
