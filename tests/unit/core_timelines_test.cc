// FenceSet, FencedRanges and Timelines: which work has been waited for by whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/fenced_ranges.h"
#include "core/observer.h"
#include "core/timelines.h"
#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr TimelineId kA{0}, kB{1}, kC{2};

FenceSet set_of(std::initializer_list<Fence> fences) {
  FenceSet set;
  for (const Fence fence : fences) set.join(fence);
  return set;
}

std::vector<Fence> listed(const FenceSet& set) { return {set.begin(), set.end()}; }

TEST(FenceSet, KeepsTheLatestFenceOfEachTimeline) {
  FenceSet set = set_of({{kA, {3}}, {kB, {1}}, {kA, {2}}});
  EXPECT_THAT(listed(set), UnorderedElementsAre(Fence{kA, {3}}, Fence{kB, {1}}));
  set.join(set_of({{kA, {7}}, {kC, {1}}}));
  EXPECT_THAT(listed(set), UnorderedElementsAre(Fence{kA, {7}}, Fence{kB, {1}}, Fence{kC, {1}}));
  set.clear();
  EXPECT_TRUE(set.empty());
}

FenceSet collected(const FencedRanges& ranges, std::uint64_t begin, std::uint64_t end) {
  FenceSet set;
  ranges.collect(begin, end, set);
  return set;
}

TEST(FencedRanges, CollectsTheFencesOfOverlappingBytesOnly) {
  FencedRanges ranges;
  ranges.add(10, 20, set_of({{kA, {1}}}));
  EXPECT_THAT(collected(ranges, 0, 10), IsEmpty());
  EXPECT_THAT(collected(ranges, 20, 30), IsEmpty());
  EXPECT_THAT(listed(collected(ranges, 19, 20)), UnorderedElementsAre(Fence{kA, {1}}));
  EXPECT_THAT(listed(collected(ranges, 0, 11)), UnorderedElementsAre(Fence{kA, {1}}));
}

TEST(FencedRanges, ALaterFenceOverTheSameBytesReplacesTheEarlier) {
  FencedRanges ranges;
  ranges.add(10, 20, set_of({{kA, {1}}}));
  ranges.add(0, 30, set_of({{kA, {2}}}));
  EXPECT_EQ(ranges.size(), 1u);
  ranges.add(0, 5, set_of({{kA, {3}}}));
  EXPECT_EQ(ranges.size(), 2u);  // the rest of the bytes still wait for the second
  EXPECT_THAT(listed(collected(ranges, 5, 6)), UnorderedElementsAre(Fence{kA, {2}}));
}

TEST(FencedRanges, ForgetsWhatLiesWhollyInsideAndNothingElse) {
  FencedRanges ranges;
  ranges.add(0, 10, set_of({{kA, {1}}}));
  ranges.add(10, 20, set_of({{kB, {1}}}));
  ranges.forget(0, 15);
  EXPECT_THAT(listed(collected(ranges, 0, 20)), UnorderedElementsAre(Fence{kB, {1}}));
  ranges.forget(10, 20);
  EXPECT_TRUE(ranges.empty());
}

TEST(FencedRanges, AgreesWithAPlainListOverRandomPrograms) {
  struct Plain {
    std::uint64_t begin, end;
    Fence fence;
  };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    FencedRanges ranges;
    std::vector<Plain> plain;
    for (int step = 0; step < 300; ++step) {
      const std::uint64_t begin = random() % 40, end = begin + 1 + random() % 12;
      const Fence fence{{static_cast<std::uint32_t>(random() % 3)}, {1 + random() % 20}};
      if (const std::uint64_t kind = random() % 8; kind < 5) {
        ranges.add(begin, end, set_of({fence}));
        plain.push_back({begin, end, fence});
      } else if (kind < 6) {
        ranges.forget(begin, end);
        std::erase_if(plain, [&](Plain p) { return begin <= p.begin && p.end <= end; });
      } else {
        const auto done = [&](Fence other) {
          return other.timeline == fence.timeline && other.sequence <= fence.sequence;
        };
        ranges.forget_if(done);
        std::erase_if(plain, [&](Plain p) { return done(p.fence); });
      }
      for (std::uint64_t at = 0; at < 52; at += 3) {
        std::map<std::uint32_t, Sequence> expected, actual;
        for (const Plain& p : plain) {
          if (p.begin >= at + 3 || at >= p.end) continue;
          Sequence& latest = expected[p.fence.timeline.value];
          latest = std::max(latest, p.fence.sequence);
        }
        for (const Fence f : collected(ranges, at, at + 3)) actual[f.timeline.value] = f.sequence;
        ASSERT_EQ(actual, expected);
      }
    }
  }
}

class TimelinesTest : public testing::Test, private EventSink {
 protected:
  void on_event(const Event& event) override { events_.push_back(event); }

  void work(Stream stream, Nanoseconds duration = 1_ms) {
    ASSERT_TRUE(device_.launch(stream, duration).ok());
  }
  std::uint32_t wait(TimelineId waiter, const FenceSet& fences) {
    const Result<std::uint32_t> waits = timelines_.wait(waiter, fences);
    EXPECT_TRUE(waits.ok());
    return waits.ok() ? *waits : 0;
  }
  std::uint32_t wait(TimelineId waiter, Fence fence) { return wait(waiter, set_of({fence})); }
  bool complete(Fence fence) {
    const Result<bool> done = timelines_.complete(set_of({fence}));
    EXPECT_TRUE(done.ok());
    return done.ok() && *done;
  }
  std::uint64_t calls(DeviceCall call) const { return device_.calls(call); }

  SimDevice device_;
  std::vector<Event> events_;
  Observer observer_{device_, this};
  Timelines timelines_{device_, observer_};
  const Stream sa_ = device_.new_stream(), sb_ = device_.new_stream(), sc_ = device_.new_stream();
  const TimelineId a_ = timelines_.of(sa_), b_ = timelines_.of(sb_), c_ = timelines_.of(sc_);
};

TEST_F(TimelinesTest, AStreamHasOneTimeline) {
  EXPECT_EQ(timelines_.of(sa_), a_);
  EXPECT_NE(a_, b_);
  EXPECT_EQ(timelines_.stream(b_), sb_);
}

TEST_F(TimelinesTest, TakingAPointCostsNoDeviceCall) {
  for (int i = 0; i < 10; ++i) (void)timelines_.now(a_);
  EXPECT_EQ(calls(DeviceCall::create_event), 0u);
  EXPECT_EQ(calls(DeviceCall::record), 0u);
}

TEST_F(TimelinesTest, OwnFencesAreSatisfiedAlways) {
  work(sa_);
  const Fence point = timelines_.now(a_);
  EXPECT_TRUE(timelines_.satisfied(point, a_));
  EXPECT_FALSE(timelines_.satisfied(point, b_));
  EXPECT_EQ(wait(a_, point), 0u);
  EXPECT_EQ(calls(DeviceCall::record), 0u);
}

TEST_F(TimelinesTest, AKnownWaitIsNeverRepeated) {
  work(sa_);
  const Fence point = timelines_.now(a_);
  EXPECT_EQ(wait(b_, point), 1u);
  EXPECT_TRUE(timelines_.satisfied(point, b_));
  EXPECT_EQ(wait(b_, point), 0u);
  EXPECT_EQ(calls(DeviceCall::record), 1u);
  EXPECT_EQ(calls(DeviceCall::wait), 1u);
}

TEST_F(TimelinesTest, AnEventServesEveryEarlierPointAndEveryWaiter) {
  const Fence first = timelines_.now(a_);
  work(sa_);
  const Fence second = timelines_.now(a_);
  const Fence exact = *timelines_.record(a_);
  EXPECT_EQ(wait(b_, second), 1u);
  EXPECT_EQ(wait(c_, first), 1u);
  EXPECT_EQ(wait(b_, exact), 0u);
  EXPECT_EQ(calls(DeviceCall::record), 1u);

  work(sa_);
  const Fence later = timelines_.now(a_);
  EXPECT_FALSE(timelines_.satisfied(later, b_));
  EXPECT_EQ(wait(b_, later), 1u);
  EXPECT_EQ(calls(DeviceCall::record), 2u);
}

TEST_F(TimelinesTest, OrderIsKnownThroughAThirdTimeline) {
  work(sa_);
  const Fence point = timelines_.now(a_);
  ASSERT_EQ(wait(b_, point), 1u);
  ASSERT_EQ(wait(c_, timelines_.now(b_)), 1u);
  EXPECT_TRUE(timelines_.satisfied(point, c_));
  EXPECT_EQ(wait(c_, point), 0u);
  EXPECT_EQ(calls(DeviceCall::wait), 2u);
}

TEST_F(TimelinesTest, AnEventCarriesOnlyWhatWasWaitedForBeforeIt) {
  const Fence before = *timelines_.record(b_);
  work(sa_);
  const Fence point = timelines_.now(a_);
  ASSERT_EQ(wait(b_, point), 1u);
  ASSERT_EQ(wait(c_, before), 1u);
  EXPECT_FALSE(timelines_.satisfied(point, c_));
}

TEST_F(TimelinesTest, ManyOldPointsAreWaitedForThroughALaterEvent) {
  std::vector<Fence> points;
  for (int i = 0; i < 300; ++i) points.push_back(*timelines_.record(a_));
  EXPECT_LE(device_.live_events(), 70u);  // a bounded number is kept
  EXPECT_EQ(wait(b_, points[0]), 1u);
  EXPECT_TRUE(timelines_.satisfied(points[0], b_));
  EXPECT_FALSE(timelines_.satisfied(points[299], b_));
  EXPECT_EQ(wait(b_, points[298]), 1u);
  EXPECT_FALSE(timelines_.satisfied(points[299], b_));
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, EventsSeenCompleteAreUsedAgain) {
  for (int i = 0; i < 200; ++i) {
    work(sa_, 1_us);
    const Fence point = *timelines_.record(a_);
    device_.advance(10_us);
    EXPECT_TRUE(complete(point));
  }
  EXPECT_LE(calls(DeviceCall::create_event), 3u);
}

TEST_F(TimelinesTest, ARetiredStreamIsWaitedForThroughItsLastEvent) {
  work(sa_);
  const Fence early = timelines_.now(a_);
  work(sa_);
  ASSERT_TRUE(timelines_.retire(a_).ok());
  EXPECT_TRUE(timelines_.retired(a_));
  EXPECT_FALSE(timelines_.retired(b_));
  ASSERT_TRUE(device_.destroy_stream(sa_).ok());

  const std::uint64_t records = calls(DeviceCall::record);
  ASSERT_TRUE(timelines_.retire(a_).ok());
  const Fence last = *timelines_.record(a_);
  EXPECT_EQ(timelines_.now(a_), last);
  EXPECT_EQ(wait(b_, early), 1u);
  EXPECT_EQ(wait(b_, last), 0u);
  EXPECT_FALSE(complete(last));
  device_.advance(1000_ms);
  EXPECT_TRUE(complete(last));
  EXPECT_TRUE(timelines_.host_wait(set_of({early, last})).ok());
  EXPECT_EQ(calls(DeviceCall::record), records);
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, CompletionIsAskedForOnceAndThenKnown) {
  EXPECT_TRUE(*timelines_.complete({}));
  work(sa_);
  const Fence early = timelines_.now(a_), point = *timelines_.record(a_);
  EXPECT_FALSE(complete(point));
  EXPECT_FALSE(timelines_.satisfied(point, b_));
  device_.advance(10_ms);
  EXPECT_TRUE(complete(point));
  EXPECT_EQ(calls(DeviceCall::query), 2u);

  EXPECT_TRUE(complete(point));
  EXPECT_TRUE(complete(early));
  EXPECT_TRUE(timelines_.satisfied(point, c_));
  EXPECT_EQ(wait(b_, point), 0u);
  EXPECT_EQ(calls(DeviceCall::query), 2u);
  EXPECT_EQ(calls(DeviceCall::wait), 0u);
}

TEST_F(TimelinesTest, TheHostWaitsUntilTheWorkIsDoneAndThenKnowsIt) {
  work(sa_, 5_ms);
  const Fence point = timelines_.now(a_);
  ASSERT_TRUE(timelines_.host_wait(set_of({point})).ok());
  EXPECT_GE(device_.now(), 5_ms);
  EXPECT_EQ(device_.host_waits(), 1u);
  EXPECT_TRUE(timelines_.satisfied(point, b_));
  EXPECT_TRUE(timelines_.satisfied(point, c_));
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].kind, EventKind::host_wait);
  EXPECT_EQ(events_[0].other, sa_.id);
  EXPECT_GE(events_[0].duration, 4_ms);

  ASSERT_TRUE(timelines_.host_wait(set_of({point})).ok());
  EXPECT_EQ(calls(DeviceCall::synchronize), 1u);
  EXPECT_EQ(events_.size(), 1u);
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, WorkQueuedAfterAHostWaitIsNotTakenForDone) {
  ASSERT_TRUE(timelines_.host_wait(set_of({timelines_.now(a_)})).ok());
  work(sa_);
  const Fence later = timelines_.now(a_);
  EXPECT_FALSE(timelines_.satisfied(later, b_));
  EXPECT_FALSE(complete(later));
}

TEST_F(TimelinesTest, AWaitThatFailsHalfwayRemembersTheFirstHalf) {
  work(sa_);
  work(sb_);
  const FenceSet both = set_of({timelines_.now(a_), timelines_.now(b_)});
  device_.fail(DeviceCall::wait, 2);
  const Result<std::uint32_t> failed = timelines_.wait(c_, both);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::device);
  EXPECT_FALSE(timelines_.satisfied(both, c_));
  EXPECT_EQ(wait(c_, both), 1u);
  EXPECT_TRUE(timelines_.satisfied(both, c_));
}

// Each call that an operation makes fails once: nothing is known that is not so, and doing it again
// works.
struct Faulty {
  const char* name;
  std::vector<DeviceCall> calls;
  std::function<bool(Timelines&, Fence, TimelineId waiter)> operation;
};

class TimelinesFaults : public TimelinesTest, public testing::WithParamInterface<Faulty> {};

TEST_P(TimelinesFaults, AFailedCallChangesNothingAndMayBeRepeated) {
  for (const DeviceCall call : GetParam().calls) {
    SCOPED_TRACE(std::string(name_of(call)));
    Timelines timelines(device_, observer_);
    const TimelineId user = timelines.of(sa_), waiter = timelines.of(sb_);
    work(sa_, 1_us);
    const Fence point = timelines.now(user);
    device_.advance(1_ms);
    device_.fail(call, 1);
    EXPECT_FALSE(GetParam().operation(timelines, point, waiter));
    EXPECT_FALSE(timelines.satisfied(point, waiter));
    EXPECT_FALSE(timelines.retired(user));
    EXPECT_THAT(timelines.validate(), IsEmpty());
    EXPECT_TRUE(GetParam().operation(timelines, point, waiter));
    EXPECT_THAT(timelines.validate(), IsEmpty());
  }
  EXPECT_EQ(device_.live_events(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Operations, TimelinesFaults,
    testing::Values(Faulty{"wait",
                           {DeviceCall::create_event, DeviceCall::record, DeviceCall::wait},
                           [](Timelines& timelines, Fence point, TimelineId waiter) {
                             return timelines.wait(waiter, set_of({point})).ok() &&
                                    timelines.satisfied(point, waiter);
                           }},
                    Faulty{"complete",
                           {DeviceCall::create_event, DeviceCall::record, DeviceCall::query},
                           [](Timelines& timelines, Fence point, TimelineId waiter) {
                             const Result<bool> done = timelines.complete(set_of({point}));
                             return done.ok() && *done && timelines.satisfied(point, waiter);
                           }},
                    Faulty{"host_wait",
                           {DeviceCall::create_event, DeviceCall::record, DeviceCall::synchronize},
                           [](Timelines& timelines, Fence point, TimelineId waiter) {
                             return timelines.host_wait(set_of({point})).ok() &&
                                    timelines.satisfied(point, waiter);
                           }},
                    Faulty{"record",
                           {DeviceCall::create_event, DeviceCall::record},
                           [](Timelines& timelines, Fence point, TimelineId) {
                             const Result<Fence> fence = timelines.record(point.timeline);
                             return fence.ok() && fence->sequence >= point.sequence;
                           }},
                    Faulty{"retire",
                           {DeviceCall::create_event, DeviceCall::record},
                           [](Timelines& timelines, Fence point, TimelineId) {
                             return timelines.retire(point.timeline).ok() &&
                                    timelines.retired(point.timeline);
                           }}),
    [](const testing::TestParamInfo<Faulty>& info) { return std::string(info.param.name); });

TEST_F(TimelinesTest, EveryEventIsGivenBackAtTheEnd) {
  {
    Timelines timelines(device_, observer_);
    const TimelineId a = timelines.of(sa_), b = timelines.of(sb_);
    for (int i = 0; i < 100; ++i) (void)timelines.record(a);
    ASSERT_TRUE(timelines.wait(b, set_of({timelines.now(a)})).ok());
    ASSERT_TRUE(timelines.host_wait(set_of({timelines.now(b)})).ok());
    EXPECT_GT(device_.live_events(), 0u);
  }
  EXPECT_EQ(device_.live_events(), 0u);
}

// Each point is taken after a write to bytes of its own; who is said to be past it reads them. The
// device's checker knows whether the order is real.
TEST_F(TimelinesTest, WhatIsCalledSatisfiedIsOrderedOnTheDevice) {
  const test::MappedPage page = test::new_page(device_, 64_MiB);
  std::vector<Stream> streams{sa_, sb_, sc_, device_.new_stream(), device_.new_stream()};
  struct Point {
    Fence fence;
    void* bytes;
  };
  std::vector<Point> points;
  std::mt19937_64 random(7);
  std::uint64_t free_waits = 0;
  for (int step = 0; step < 20'000; ++step) {
    const Stream stream = streams[random() % streams.size()];
    const TimelineId mine = timelines_.of(stream);
    const std::uint64_t kind = random() % 16;
    if (kind < 5 || points.empty()) {
      void* const bytes = page.at(kGrain * points.size());
      ASSERT_TRUE(device_.launch(stream, Writes(bytes, kGrain), 20_us).ok());
      const Fence fence = random() % 2 == 0 ? timelines_.now(mine) : *timelines_.record(mine);
      points.push_back({fence, bytes});
      continue;
    }
    const std::size_t young = std::min<std::size_t>(points.size(), 200);
    const Point& point = points[points.size() - 1 - random() % young];
    if (kind == 5) {
      ASSERT_TRUE(timelines_.host_wait(set_of({point.fence})).ok());
    } else if (kind == 6) {
      (void)complete(point.fence);
    } else if (kind < 9) {
      wait(mine, point.fence);
    }
    if (!timelines_.satisfied(point.fence, mine)) continue;
    ++free_waits;
    const std::uint64_t waits = calls(DeviceCall::wait);
    wait(mine, point.fence);
    ASSERT_EQ(calls(DeviceCall::wait), waits);
    ASSERT_TRUE(device_.launch(stream, Reads(point.bytes, kGrain), 1_us).ok());
    device_.advance(2_us);
  }
  EXPECT_GT(free_waits, 1000u);
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_THAT(timelines_.validate(), IsEmpty());
  EXPECT_LE(device_.live_events(), 70u * streams.size());
}

}  // namespace
}  // namespace weir
