// SPDX-License-Identifier: Apache-2.0
// Ranks that do not come, in the simulated world: what only some ask for ends for nobody, as on a
// GPU.
#include <chrono>
#include <thread>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::kCount;
using test::kSecond;
using test::kSize;
using test::Rank;

class AbsentRanks : public test::CommRanks {
 protected:
  AbsentRanks() : CommRanks(2, {.host_timeout = std::chrono::milliseconds(300)}) {}
};

TEST_F(AbsentRanks, AreFoundByTheWatchdogWithinTheTimeout) {
  create({.timeout = kSecond});
  Rank& rank = *ranks_[0];
  void* const block = rank.allocate(kSize, rank.compute);
  expect_ok(rank.sum(block, kSize, rank.compute));
  rank.device.advance(kSecond + 1_ms);  // timed from when it was queued, not from the first look
  expect_error(rank.comm->poll(), ErrorCode::device,
               "rank 0 of 2: operation 1, all-reduce of 4.00 MiB of float32 (sum), has not ended "
               "in 1.0 s");
  rank.free(block);
  expect_ok(rank.comm->close());  // what went on was ended
}

TEST_F(AbsentRanks, MakeCloseAnErrorWithinTheHostTimeoutOfTheCommunicatorToo) {
  create({.host_timeout = Nanoseconds{100'000'000}});
  Rank& rank = *ranks_[0];
  void* const block = rank.allocate(kSize, rank.compute);
  expect_ok(rank.sum(block, kSize, rank.compute));
  rank.free(block);
  expect_error(rank.comm->close(), ErrorCode::device,
               "its operations have not ended in 0.1 s: the first that may not have is operation "
               "1, all-reduce of 4.00 MiB of float32 (sum)");
}

TEST_F(AbsentRanks, MayComeLate) {
  create({.timeout = kSecond});
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kSize, rank.compute);
    if (rank.number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (int step = 0; step < 10; ++step) {
      expect_ok(rank.sum(block, kSize, rank.compute));
      expect_ok(rank.comm->poll());
      rank.device.advance(kSecond + kSecond);
      expect_ok(rank.comm->poll());
    }
    rank.free(block);
  });
}

}  // namespace
}  // namespace weir
