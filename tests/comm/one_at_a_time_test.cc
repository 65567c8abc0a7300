// SPDX-License-Identifier: Apache-2.0
// NCCL lets one thread at a time work with a communicator; programs may call Weir's from any.
#include "tests/comm/one_at_a_time.h"

#include <thread>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::Rank;
using testing::IsEmpty;

constexpr Bytes kSmallSize = 4_KiB;
constexpr std::uint64_t kSmallCount = kSmallSize.count / 4;

// A communicator of one rank, whose calls of NCCL's are looked at.
class OneThreadAtATime : public test::CommRanks {
 protected:
  OneThreadAtATime() : CommRanks(1), nccl_(*ranks_[0]->nccl) {
    Rank& rank = *ranks_[0];
    Result<Communicator> made = Communicator::create({nccl_, rank.device, *rank.heap},
                                                     *nccl_.unique_id(), 1, 0, {.watch_every = {}});
    expect_ok(made);
    rank.comm = *std::move(made);
    block_ = rank.allocate(kSmallSize, rank.compute);
  }
  void TearDown() override {
    ranks_[0]->free(block_);
    CommRanks::TearDown();
  }
  Rank& rank() { return *ranks_[0]; }
  Operation sum() const { return {.send = block_, .receive = block_, .count = kSmallCount}; }

  // Makes `call` while the call of NCCL's that `first` makes goes on.
  void make_beside(const std::string& held, const std::function<void()>& first,
                   const std::function<void()>& call) {
    nccl_.hold(held);
    std::thread other(first);
    nccl_.await_held();
    call();
    other.join();
    EXPECT_THAT(nccl_.side_by_side(), IsEmpty());
  }

  test::OneAtATime nccl_;
  void* block_ = nullptr;
};

TEST_F(OneThreadAtATime, AnAbortWaitsForTheOperationThatIsBeingQueued) {
  make_beside(
      "enqueue", [&] { expect_ok(rank().comm->run(sum(), overlapped(rank().compute))); },
      [&] { rank().comm->abort("a test"); });
  expect_error(rank().comm->status(), ErrorCode::device, "aborted: a test");
}

TEST_F(OneThreadAtATime, AnOperationIsNotQueuedOnceAnAbortHasBegun) {
  make_beside(
      "revoke", [&] { rank().comm->abort("a test"); },
      [&] {
        expect_error(rank().comm->run(sum(), overlapped(rank().compute)), ErrorCode::device,
                     "communicator 'world', rank 0 of 1: aborted: a test");
      });
}

TEST_F(OneThreadAtATime, ASplitWaitsForTheOperationThatIsBeingQueued) {
  make_beside(
      "enqueue", [&] { expect_ok(rank().comm->run(sum(), overlapped(rank().compute))); },
      [&] { expect_ok(rank().comm->split(0, 0, {.watch_every = {}})); });
}

class ThatComeLate : public test::CommRanks {};

TEST_F(ThatComeLate, RanksOfASplitEndTheCommunicatorThatWaited) {
  create();
  const CommunicatorOptions short_host_timeout{.host_timeout = Nanoseconds{200'000'000},
                                               .watch_every = {}};
  expect_error(ranks_[0]->comm->split(0, 0, short_host_timeout), ErrorCode::device,
               "not all ranks came in time");
  expect_error(ranks_[0]->comm->status(), ErrorCode::device, "split: not all ranks came in time");
  (void)ranks_[1]->comm->split(0, 0, short_host_timeout);  // so that what waited for it ends
}

}  // namespace
}  // namespace weir
