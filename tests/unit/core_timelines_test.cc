// Timelines: which work has been waited for by whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/observer.h"
#include "core/timelines.h"
#include "tests/unit/core_test_access.h"
#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

FenceSet set_of(std::initializer_list<Fence> fences) {
  FenceSet set;
  for (const Fence fence : fences) set.join(fence);
  return set;
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

TEST_F(TimelinesTest, ARetiredStreamsEventGoesBackOnceItIsSeenComplete) {
  work(sa_);
  ASSERT_TRUE(timelines_.retire(a_).ok());
  const Fence last = timelines_.now(a_);
  EXPECT_EQ(device_.live_events(), 1u);
  EXPECT_FALSE(complete(last));
  device_.advance(10_ms);
  EXPECT_TRUE(complete(last));
  EXPECT_TRUE(TestAccess::all(timelines_)[a_.value].events.empty());
  EXPECT_THAT(TestAccess::retired(timelines_), IsEmpty());
  EXPECT_TRUE(timelines_.record(b_).ok());  // with the same event
  EXPECT_EQ(device_.live_events(), 1u);

  EXPECT_EQ(wait(b_, last), 0u);
  EXPECT_TRUE(timelines_.satisfied(last, c_));
  EXPECT_TRUE(complete(*timelines_.record(a_)));
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, ManyRetiredStreamsKeepABoundedNumberOfEvents) {
  std::vector<Fence> lasts;
  for (int i = 0; i < 1'000; ++i) {
    const Stream stream = device_.new_stream();
    const TimelineId mine = timelines_.of(stream);
    work(stream, 10_us);
    ASSERT_EQ(wait(a_, timelines_.now(mine)), 1u);
    ASSERT_TRUE(timelines_.retire(mine).ok());
    ASSERT_TRUE(device_.destroy_stream(stream).ok());
    lasts.push_back(timelines_.now(mine));
    device_.advance(20_us);
  }
  EXPECT_LE(device_.live_events(), 2 * 65u);  // of each, the one waited for and the last
  EXPECT_LE(TestAccess::all(timelines_)[a_.value].clock.size(), 130u);
  for (const Fence last : lasts) EXPECT_TRUE(complete(last));
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, ARetiredStreamThatStillRunsKeepsItsEvent) {
  std::vector<TimelineId> timelines;
  for (int i = 0; i < 100; ++i) {
    const Stream stream = device_.new_stream();
    timelines.push_back(timelines_.of(stream));
    work(stream, 1000_ms);
    ASSERT_TRUE(timelines_.retire(timelines.back()).ok());
  }
  EXPECT_EQ(device_.live_events(), 100u);
  EXPECT_FALSE(timelines_.satisfied(timelines_.now(timelines[0]), a_));
  EXPECT_EQ(wait(a_, timelines_.now(timelines[0])), 1u);
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

// Its event could not be recorded: nobody knows when its work ends.
TEST_F(TimelinesTest, AStreamDestroyedWithoutRetireIsNamedAndTheRemedySaid) {
  work(sa_);
  const Fence point = timelines_.now(a_);
  ASSERT_TRUE(device_.destroy_stream(sa_).ok());
  for (int i = 0; i < 2; ++i) {
    const Result<bool> waited = timelines_.wait(b_, point);
    ASSERT_FALSE(waited.ok());
    EXPECT_EQ(waited.error().code(), ErrorCode::device);
    EXPECT_THAT(waited.error().message(), HasSubstr("on stream " + std::to_string(sa_.id)));
    EXPECT_THAT(waited.error().message(), HasSubstr("call retire() before"));
    EXPECT_FALSE(timelines_.satisfied(point, b_));
  }
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, AThreadsLookUpsAreItsTimelinesOwn) {
  for (int i = 0; i < 40; ++i) {
    const Stream stream = device_.new_stream();
    Timelines others(device_, observer_);
    EXPECT_EQ(others.of(sb_), TimelineId{0});
    EXPECT_EQ(others.of(stream), TimelineId{1});
    EXPECT_EQ(timelines_.of(sb_), b_);
    EXPECT_EQ(timelines_.of(stream), TimelineId{static_cast<std::uint32_t>(3 + i)});
  }
}

// Each thread queues work on its own stream, lets its neighbour's wait for it, and waits for all
// that it knows of; points and completeness are read while others record.
TEST_F(TimelinesTest, ThreadsMayDoEverythingAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kSteps = 400;
  std::vector<Stream> streams;
  std::vector<TimelineId> ids;
  for (int i = 0; i < kThreads; ++i) {
    streams.push_back(device_.new_stream());
    ids.push_back(timelines_.of(streams.back()));
  }
  std::vector<std::thread> threads;
  for (std::size_t me = 0; me < kThreads; ++me) {
    threads.emplace_back([&, me] {
      std::mt19937_64 random(me);
      for (int step = 0; step < kSteps; ++step) {
        const TimelineId mine = ids[me], other = ids[random() % kThreads];
        EXPECT_TRUE(device_.launch(streams[me], 1_us).ok());
        const Fence fence = random() % 2 == 0 ? timelines_.now(mine) : *timelines_.record(mine);
        EXPECT_TRUE(timelines_.satisfied(fence, mine));
        EXPECT_TRUE(timelines_.wait(other, fence).ok());
        EXPECT_TRUE(timelines_.satisfied(fence, other));
        EXPECT_EQ(timelines_.stream(other),
                  streams[timelines_.of(timelines_.stream(other)).value - ids[0].value]);
        if (step % 16 == 0) {
          EXPECT_TRUE(timelines_.host_wait(set_of({timelines_.now(other)})).ok());
        }
        if (step % 50 == 0) {
          const Stream brief = device_.new_stream();
          const TimelineId own = timelines_.of(brief);
          EXPECT_TRUE(timelines_.retire(own).ok());
          EXPECT_TRUE(timelines_.host_wait(set_of({timelines_.now(own)})).ok());
        }
        device_.advance(2_us);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(timelines_.validate(), IsEmpty());
  EXPECT_THAT(TestAccess::retired(timelines_), IsEmpty());
}

// Once its work is complete, the clock of who waited for a fence may forget it.
TEST_F(TimelinesTest, ASatisfiedFenceStaysSoWhileItIsForgotten) {
  for (int round = 0; round < 100; ++round) {
    work(sa_, 1_us);
    const Fence fence = *timelines_.record(a_);
    EXPECT_TRUE(timelines_.wait(b_, fence).ok());
    std::atomic<bool> forgotten = false;
    std::thread forgets([&] {
      EXPECT_TRUE(timelines_.host_wait(set_of({fence})).ok());
      const Stream brief = device_.new_stream();  // a clock forgets when it hears of another
      const TimelineId own = timelines_.of(brief);
      EXPECT_TRUE(device_.launch(brief, 1_us).ok());
      EXPECT_TRUE(timelines_.wait(b_, *timelines_.record(own)).ok());
      EXPECT_TRUE(timelines_.retire(own).ok());
      forgotten = true;
    });
    while (!forgotten) ASSERT_TRUE(timelines_.satisfied(fence, b_)) << "round " << round;
    forgets.join();
  }
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
