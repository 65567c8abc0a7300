// SPDX-License-Identifier: Apache-2.0
// The watchdog: each operation, and each launch of a graph, is timed by itself, however many are
// queued.
#include <chrono>
#include <thread>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::kSecond;
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

TEST_P(WatchedOnEither, FiveStepsQueuedTogetherMayEachTakeAlmostTheTimeout) {
  create({.timeout = kSecond});
  on_all([](Rank& rank) {
    queue(rank, 5, GetParam());
    EXPECT_EQ(late_after(rank, 3), std::nullopt);
    expect_ok(rank.comm->status());
  });
}

TEST_F(Watched, FiveLaunchesQueuedTogetherMayEachTakeAlmostTheTimeout) {
  create({.timeout = kSecond});
  prepare();
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    queue(rank, 1);
    Result<Graph> graph = rank.comm->end_capture(*capture);
    expect_ok(graph);
    for (int launch = 0; launch < 5; ++launch) {
      expect_ok(rank.comm->launch(*graph, rank.compute));
    }
    EXPECT_EQ(late_after(rank, 3), std::nullopt);
    expect_ok(rank.comm->status());
  });
}

TEST_F(Watched, AnOperationIsTimedFromWhenItWasQueuedNotFromTheFirstPoll) {
  create({.timeout = kSecond});
  world_.hang(0, 1);
  on_all([](Rank& rank) {
    queue(rank, 1);
    rank.device.advance(kSecond + 1_ms);
    if (rank.number == 0) {
      expect_error(rank.comm->poll(), ErrorCode::device, "operation 1, all-reduce");
    } else {
      expect_ok(rank.comm->poll());
    }
  });
}

// Each look asks the device whether the operation has ended.
TEST_F(Watched, TheThreadLooksAsOftenAsItIsToldTo) {
  Rank& rank = *ranks_[0];
  const auto looks_in = [&](Nanoseconds watch_every, std::chrono::milliseconds time) {
    Result<Communicator> made = Communicator::create(rank.context(), *rank.nccl->unique_id(), 1, 0,
                                                     {.watch_every = watch_every});
    expect_ok(made);
    rank.comm = *std::move(made);
    const std::uint64_t before = rank.device.calls(DeviceCall::query);
    queue(rank, 1);
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(time);
    const std::uint64_t looks = rank.device.calls(DeviceCall::query) - before;
    const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - begin;
    if (watch_every > 0_ns) {
      EXPECT_LE(looks, static_cast<std::uint64_t>(passed.count() / watch_every.count) + 2);
    }
    return looks;
  };
  EXPECT_EQ(looks_in(Nanoseconds{3600 * kSecond.count}, std::chrono::milliseconds(30)), 0u);
  std::uint64_t looks = 0;
  for (int i = 0; i < 200 && looks < 2; ++i) looks = looks_in(2_ms, std::chrono::milliseconds(30));
  EXPECT_GE(looks, 2u);
  EXPECT_EQ(looks_in(0_ms, std::chrono::milliseconds(30)), 0u) << "there is no thread";
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

TEST_F(Watched, TheEventsOfABurstGoOnceTheQueueIsQuiet) {
  create({.timeout = kSecond});
  on_all([](Rank& rank) {
    queue(rank, 3000);
    EXPECT_GT(rank.device.live().events, 500u);
    EXPECT_EQ(late_after(rank, 1300), std::nullopt);
    EXPECT_LT(rank.device.live().events, 200u);
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

}  // namespace
}  // namespace weir
