// SPDX-License-Identifier: Apache-2.0
// The watchdog: each operation, and each launch of a graph, is timed by itself, however many are
// queued.
#include <chrono>
#include <thread>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::begin;
using test::expect_error;
using test::expect_ok;
using test::got;
using test::kSecond;
using test::kSize;
using test::Rank;

constexpr Bytes kTinySize = 4_KiB;
constexpr Nanoseconds kStep{400'000'000};  // that an operation lasts

class Watched : public test::CommRanks {
 protected:
  Watched() : CommRanks(2, {.latency = kStep}) {}

  static void queue(Rank& rank, int operations, bool overlap = true) {
    void* const block = rank.allocate(kTinySize, rank.compute);
    const Where where = overlap ? overlapped(rank.compute) : Where(rank.compute);
    for (int i = 0; i < operations; ++i) {
      expect_ok(
          rank.comm->all_reduce(block, block, kTinySize.count / 4, DataType::float32, {}, where));
    }
    rank.free(block);
  }
};

// On the communicator's stream, or on the caller's.
class WatchedOnEither : public Watched, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Streams, WatchedOnEither, testing::Bool());

TEST_P(WatchedOnEither, FiveQueuedTogetherMayEachTakeAlmostTheTimeoutAndSoMayFiveLaunches) {
  create({.timeout = kSecond});
  prepare();
  on_all([](Rank& rank) {
    queue(rank, 5, GetParam());
    EXPECT_EQ(late_after(rank, 3), std::nullopt);
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    queue(rank, 1, GetParam());
    Graph graph = got(rank.comm->end_capture(capture));
    for (int launch = 0; launch < 5; ++launch) {
      expect_ok(rank.comm->launch(graph, rank.compute));
    }
    EXPECT_EQ(late_after(rank, 3), std::nullopt);
    expect_ok(rank.comm->status());
  });
}

TEST_P(WatchedOnEither, TheOneThatHangsIsNamedAloneAmongThoseQueuedWithIt) {
  create({.timeout = kSecond});
  world_.hang(0, 3);
  on_all([](Rank& rank) {
    queue(rank, 5, GetParam());
    const std::optional<double> late = late_after(rank, 4);
    if (rank.number == 1) return;
    ASSERT_TRUE(late.has_value());
    EXPECT_LT(*late, 2.2);  // two of 0.4 s, and the timeout
    expect_error(rank.comm->status(), ErrorCode::device,
                 "operation 3, all-reduce of 4.00 KiB of float32 (sum), has not ended in 1.");
  });
}

// More than there are marks for: each stands for some operations, which may take as many times as
// long.
TEST_F(Watched, ManyThousandsQueuedTogetherAreNotLateAndTakeABoundedNumberOfEvents) {
  create({.timeout = kSecond});
  on_all([](Rank& rank) {
    queue(rank, 5000);
    EXPECT_LT(rank.device.live().events, 1200u);
    EXPECT_EQ(late_after(rank, 2100), std::nullopt);
    expect_ok(rank.comm->status());
  });
}

TEST_F(Watched, TheOneThatHangsAmongManyThousandsIsFound) {
  create({.timeout = kSecond});
  world_.hang(0, 2500);
  on_all([](Rank& rank) {
    queue(rank, 5000);
    const std::optional<double> late = late_after(rank, 1100);
    if (rank.number == 1) return;
    ASSERT_TRUE(late.has_value());
    EXPECT_LT(*late, 2500 * 0.4 + 10);  // those before it, and eight timeouts
    expect_error(rank.comm->status(), ErrorCode::device, "has not ended in");
  });
}

TEST_F(Watched, MarksAreFineAgainOnceTheQueueWasEmpty) {
  create({.timeout = kSecond});
  world_.hang(0, 3000 + 2);
  on_all([](Rank& rank) {
    queue(rank, 3000);
    EXPECT_EQ(late_after(rank, 1210), std::nullopt);
    queue(rank, 3);
    const std::optional<double> late = late_after(rank, 4);
    if (rank.number == 1) return;
    ASSERT_TRUE(late.has_value());
    expect_error(rank.comm->status(), ErrorCode::device,
                 "operation 3002, all-reduce of 4.00 KiB of float32 (sum), has not ended in 1.");
  });
}

// Ranks that do not come: what only some ask for ends for nobody, as on a GPU.
class AbsentRanks : public test::CommRanks {
 protected:
  AbsentRanks() : CommRanks(2, {.host_timeout = std::chrono::milliseconds(300)}) {}
};

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
