// SPDX-License-Identifier: Apache-2.0
// The irregular programs are what their families say, and the same ones each time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/irregular/simulated_history.h"
#include "bench/irregular/timed_history.h"
#include "suite/irregular_families.h"

namespace weir::bench {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

constexpr HistoryLength kShort{.phases = 3, .pairs = 512};

std::vector<History::Calls> all_phases(const Family& family, std::uint64_t seed) {
  History history(family, seed, kShort);
  std::vector<History::Calls> phases;
  for (unsigned i = 0; i < history.phases(); ++i) phases.push_back(history.next());
  phases.push_back(history.frees());
  return phases;
}

// Follows the calls of one thread, and expects each to be a legal one of the family.
class Follower {
 public:
  Follower(const Family& family, unsigned thread) : family_(family), thread_(thread) {}

  void follow(const std::vector<Call>& calls) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Call& call = calls[i];
      EXPECT_EQ(call.stream / family_.streams, thread_);
      switch (call.kind) {
        case Call::Kind::allocate:
          EXPECT_TRUE(live_.emplace(call.slot, call.bytes).second) << "slot " << call.slot;
          break;
        case Call::Kind::use:
          EXPECT_NE(call.user, call.stream);
          EXPECT_EQ(call.user / family_.streams, thread_);
          ASSERT_LT(i + 1, calls.size());
          EXPECT_EQ(calls[i + 1].kind, Call::Kind::free);
          EXPECT_EQ(calls[i + 1].slot, call.slot);
          break;
        case Call::Kind::free:
          EXPECT_EQ(live_.at(call.slot), call.bytes);
          live_.erase(call.slot);
          break;
      }
    }
  }

  const std::map<std::uint32_t, std::uint64_t>& live() const { return live_; }  // bytes by slot

 private:
  const Family& family_;
  const unsigned thread_;
  std::map<std::uint32_t, std::uint64_t> live_;
};

TEST(IrregularFamilies, CallsFollowFromTheSeed) {
  for (const Family& family : families()) {
    const auto phases = all_phases(family, 1), again = all_phases(family, 1),
               others = all_phases(family, 2);
    for (std::size_t i = 0; i < phases.size(); ++i) {
      EXPECT_TRUE(phases[i] == again[i]) << family.name << ", phase " << i;
    }
    EXPECT_FALSE(phases.front() == others.front()) << family.name;
  }
}

TEST(IrregularFamilies, EachThreadKeepsToItsStreamsAndFreesWhatItAllocated) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    History history(family, 1, kShort);
    std::vector<Follower> threads;
    for (unsigned i = 0; i < family.threads; ++i) threads.emplace_back(family, i);
    std::map<std::uint32_t, std::size_t> owners;  // threads by slot
    for (unsigned phase = 0; phase < history.phases(); ++phase) {
      const History::Calls& calls = history.next();
      for (std::size_t i = 0; i < threads.size(); ++i) {
        threads[i].follow(calls[i]);
        EXPECT_THAT(threads[i].live().size(),
                    AllOf(Ge(family.live - family.live / 4), Le(family.live)));
        for (const auto& [slot, bytes] : threads[i].live()) {
          EXPECT_LT(slot, history.slots());
          EXPECT_EQ(owners.try_emplace(slot, i).first->second, i) << "threads share slot " << slot;
        }
      }
    }
    const History::Calls& frees = history.frees();
    for (std::size_t i = 0; i < threads.size(); ++i) {
      threads[i].follow(frees[i]);
      EXPECT_THAT(threads[i].live(), IsEmpty());
    }
  }
}

TEST(IrregularFamilies, SizesAreTheFamilys) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    History history(family, 1, kShort);
    std::set<std::uint64_t> sizes;
    for (const Call& call : taking_turns(history.next())) sizes.insert(call.bytes);
    EXPECT_THAT(sizes, Each(AllOf(Ge(family.least.count), Le(family.most.count))));
    if (family.sizes > 0) {
      EXPECT_THAT(sizes, SizeIs(family.sizes));
    } else {
      EXPECT_GT(sizes.size(), 400U);
    }
  }
}

TEST(IrregularFamilies, AFifthOfTheBlocksIsUsedElsewhere) {
  const Family* const family = find_family("256K-32M.used");
  ASSERT_NE(family, nullptr);
  History history(*family, 1, {.phases = 2, .pairs = 20'000});
  const std::vector<Call> calls = taking_turns(history.next());
  double uses = 0, frees = 0;
  for (const Call& call : calls) {
    uses += call.kind == Call::Kind::use;
    frees += call.kind == Call::Kind::free;
  }
  EXPECT_NEAR(uses / frees, 0.2, 0.02);
}

TEST(IrregularFamilies, AQueueFreesWhatIsOldest) {
  const Family* const family = find_family("1M-64M.queue");
  ASSERT_NE(family, nullptr);
  History history(*family, 1, kShort);
  std::deque<std::uint32_t> queue;
  for (const Call& call : history.next()[0]) {
    if (call.kind == Call::Kind::allocate) {
      queue.push_back(call.slot);
    } else if (call.kind == Call::Kind::use) {
      EXPECT_EQ(call.user, 0);
      EXPECT_NE(call.stream, 0);
    } else {
      ASSERT_EQ(call.slot, queue.front());
      queue.pop_front();
    }
  }
}

TEST(IrregularFamilies, AStackFreesWhatIsNewest) {
  const Family* const family = find_family("1M-64M.stack");
  ASSERT_NE(family, nullptr);
  History history(*family, 1, kShort);
  std::vector<std::uint32_t> stack;
  for (const Call& call : history.next()[0]) {
    if (call.kind == Call::Kind::allocate) {
      stack.push_back(call.slot);
    } else {
      ASSERT_EQ(call.slot, stack.back());
      stack.pop_back();
    }
  }
}

TEST(IrregularFamilies, ACacheThatGrowsIsCopiedIntoALargerBlock) {
  const Family* const family = find_family("1M-256M.growing");
  ASSERT_NE(family, nullptr);
  History history(*family, 1, kShort);
  unsigned larger = 0, frees = 0;
  const Call* before = nullptr;
  const std::vector<Call> calls = history.next()[0];
  for (const Call& call : calls) {
    if (call.kind == Call::Kind::free) {
      ASSERT_EQ(before->kind, Call::Kind::allocate);
      ++frees;
      larger += before->bytes > call.bytes && before->bytes < call.bytes + call.bytes / 3;
    }
    before = &call;
  }
  EXPECT_EQ(frees, kShort.pairs);
  EXPECT_GT(larger, frees / 2);
}

TEST(IrregularFamilies, SizesDriftThroughTheRange) {
  const Family* const family = find_family("1M-128M.drift");
  ASSERT_NE(family, nullptr);
  History history(*family, 1, {.phases = 30, .pairs = 512});
  std::vector<std::uint64_t> least, most;
  for (unsigned phase = 0; phase < history.phases(); ++phase) {
    std::vector<std::uint64_t> sizes;
    for (const Call& call : history.next()[0]) {
      if (call.kind == Call::Kind::allocate) sizes.push_back(call.bytes);
    }
    least.push_back(*std::ranges::min_element(sizes));
    most.push_back(*std::ranges::max_element(sizes));
  }
  EXPECT_LT(Bytes{most[0]}, 4_MiB);
  EXPECT_GT(Bytes{least[16]}, 32_MiB);
  EXPECT_LT(Bytes{most[29]}, 16_MiB);
}

TEST(IrregularFamilies, TurnsComeAfterAHistoryThatStaysLive) {
  const Family* const family = find_family("8M.turns");
  ASSERT_NE(family, nullptr);
  History history(*family, 1, kShort);
  ASSERT_EQ(history.first_measured(), kShort.phases);
  Follower follower(*family, 0);
  for (unsigned i = 0; i < history.first_measured(); ++i) follower.follow(history.next()[0]);
  const auto before = follower.live();
  const History::Calls& turns = history.next();
  EXPECT_EQ(pairs_of(turns), kShort.pairs / 8);
  EXPECT_THAT(turns[0], SizeIs(3 * kShort.pairs / 8));
  for (const Call& call : turns[0]) EXPECT_EQ(Bytes{call.bytes}, 8_MiB);
  follower.follow(turns[0]);
  EXPECT_EQ(follower.live(), before);
}

TEST(IrregularFamilies, ThePeakIsThatOfThreadsTakingTurns) {
  const Family* const family = find_family("300K-3M.threads8");
  ASSERT_NE(family, nullptr);
  History history(*family, 1, kShort);
  std::map<std::uint32_t, std::uint64_t> live;
  std::uint64_t now = 0, peak = 0;
  for (unsigned i = 0; i < history.phases(); ++i) {
    for (const Call& call : taking_turns(history.next())) {
      if (call.kind == Call::Kind::allocate) now += call.bytes;
      if (call.kind == Call::Kind::free) now -= call.bytes;
      peak = std::max(peak, now);
    }
    EXPECT_EQ(history.peak_live().count, peak);
  }
}

class SimulatedHistory : public ::testing::TestWithParam<Trust> {};

TEST_P(SimulatedHistory, FiguresFollowFromTheSeed) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const auto figures = run_simulated(family, GetParam(), 1, kShort);
    const auto again = run_simulated(family, GetParam(), 1, kShort);
    const auto other = run_simulated(family, GetParam(), 2, kShort);
    EXPECT_EQ(figures.ratio, again.ratio);
    EXPECT_EQ(figures.first.maps, again.first.maps);
    EXPECT_EQ(figures.later.maps, again.later.maps);
    EXPECT_EQ(figures.later.unmaps, again.later.unmaps);
    EXPECT_EQ(figures.later.waits, again.later.waits);
    EXPECT_EQ(figures.later_driver_time, again.later_driver_time);
    EXPECT_NE(figures.ratio, other.ratio);
    EXPECT_GE(figures.ratio, 1.0);
    EXPECT_EQ(figures.races, 0U);
  }
}

TEST_P(SimulatedHistory, OnlyTheContractsRuleTakesContextEvents) {
  const Family* const family = find_family("256K-32M.used");
  ASSERT_NE(family, nullptr);
  const auto figures = run_simulated(*family, GetParam(), 1, kShort);
  const std::uint64_t events = figures.first.context_events + figures.later.context_events;
  EXPECT_EQ(events > 0, GetParam() == Trust::context);
}

INSTANTIATE_TEST_SUITE_P(BothKindsOfTrust, SimulatedHistory,
                         ::testing::Values(Trust::told, Trust::context), [](const auto& each) {
                           return each.param == Trust::told ? "told" : "context";
                         });

// Counts calls, and fails at one of them.
struct CountingTarget {
  void enter_thread() { ++threads; }
  void* allocate(const Call&) {
    if (++allocated == fail_at) throw std::runtime_error("no memory");
    return this;
  }
  void use(void*, const Call&) { ++used; }
  void free(void*, const Call&) { ++freed; }
  void settle() { ++settled; }

  unsigned fail_at = 0;
  std::atomic<unsigned> threads = 0, allocated = 0, used = 0, freed = 0;
  unsigned settled = 0;
};

TEST(TimedHistory, MakesEveryCallAndTimesEveryMeasuredPhase) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    History history(family, 1, kShort);
    CountingTarget target;
    unsigned phases = 0;
    const HistoryTimes times =
        run_history(target, history, [&](unsigned phase) { EXPECT_EQ(phase, phases++); });
    EXPECT_EQ(phases, history.phases());
    EXPECT_THAT(times.phases, SizeIs(kShort.phases));
    EXPECT_EQ(target.allocated, target.freed);
    EXPECT_EQ(target.used > 0, family.used_elsewhere > 0 || family.turn != 0_B);
    EXPECT_EQ(target.threads, family.threads * (history.phases() + 1));
    EXPECT_EQ(target.settled, history.phases() + 1);
    EXPECT_GE(times.phases[0].calls.calls, times.later_calls().calls / kShort.phases);
    EXPECT_GT(times.later_calls().slowest_ns, 0);
  }
}

TEST(TimedHistory, PassesOnWhatACallThrew) {
  for (const char* const name : {"256K-32M", "300K-3M.threads8"}) {
    History history(*find_family(name), 1, kShort);
    CountingTarget target;
    target.fail_at = 100;
    EXPECT_THROW(run_history(target, history, [](unsigned) {}), std::runtime_error) << name;
  }
}

TEST(TimedHistory, AMedianPhaseAndTheLastAreOfThoseAfterTheFirst) {
  HistoryTimes times;
  for (const double ns : {900.0, 30.0, 10.0, 20.0}) {
    times.phases.push_back({.ns_per_pair = ns, .calls = {.calls = 100, .slow = 1}});
  }
  times.phases[1].calls.slowest_ns = 50'000;
  EXPECT_EQ(times.first_ns(), 900.0);
  EXPECT_EQ(times.later_ns(), 20.0);
  EXPECT_EQ(times.last_ns(), 20.0);
  EXPECT_EQ(times.later_calls().calls, 300U);
  EXPECT_DOUBLE_EQ(times.later_calls().slow_share(), 0.01);
  EXPECT_EQ(times.later_calls().slowest_ns, 50'000);
}

}  // namespace
}  // namespace weir::bench
