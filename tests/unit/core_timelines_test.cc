// SPDX-License-Identifier: Apache-2.0
// Timelines: which work has been waited for by whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/core_test_access.h"
#include "tests/unit/core_timelines_fixture.h"
#include "tests/unit/sim_memory_helpers.h"

namespace weir {
namespace {

using test::set_of;
using test::TimelinesTest;
using testing::IsEmpty;

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

// Whether a place must be waited for is then the same on a fast device as on a slow one.
TEST_F(TimelinesTest, LookingWhetherWorkIsOverTeachesNothing) {
  work(sa_);
  const Fence fence = timelines_.record(a_).value();
  EXPECT_FALSE(*timelines_.looks_complete(set_of({fence})));
  device_.finish();
  EXPECT_TRUE(*timelines_.looks_complete(set_of({fence})));
  EXPECT_FALSE(timelines_.satisfied(fence, b_));
  EXPECT_TRUE(complete(fence));
  EXPECT_TRUE(timelines_.satisfied(fence, b_));
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
  EXPECT_LE(device_.live().events, 70u);  // a bounded number is kept
  EXPECT_EQ(wait(b_, points[0]), 1u);
  EXPECT_TRUE(timelines_.satisfied(points[0], b_));
  EXPECT_FALSE(timelines_.satisfied(points[299], b_));
  EXPECT_EQ(wait(b_, points[298]), 1u);
  EXPECT_FALSE(timelines_.satisfied(points[299], b_));
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, AThreadsLookUpsAreItsTimelinesOwn) {
  for (int i = 0; i < 40; ++i) {
    const Stream stream = device_.new_stream();
    Timelines others(device_, observer_, captures_);
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
        EXPECT_TRUE(timelines_.wait(other, set_of({fence})).ok());
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

TEST_F(TimelinesTest, AWaitThatFailsHalfwayRemembersTheFirstHalf) {
  work(sa_);
  work(sb_);
  const FenceSet both = set_of({timelines_.now(a_), timelines_.now(b_)});
  device_.fail(DeviceCall::wait, 2);
  const Status failed = timelines_.wait(c_, both);
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
    Timelines timelines(device_, observer_, captures_);
    const TimelineId user = timelines.of(sa_), waiter = timelines.of(sb_);
    work(sa_, 1_us);
    const Fence point = timelines.now(user);
    device_.advance(1_ms);
    device_.fail(call, 1);
    EXPECT_FALSE(GetParam().operation(timelines, point, waiter));
    EXPECT_FALSE(timelines.satisfied(point, waiter));
    EXPECT_FALSE(timelines.retired(sa_));
    EXPECT_THAT(timelines.validate(), IsEmpty());
    EXPECT_TRUE(GetParam().operation(timelines, point, waiter));
    EXPECT_THAT(timelines.validate(), IsEmpty());
  }
  EXPECT_EQ(device_.live().events, 0u);
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
                                    timelines.retired(timelines.stream(point.timeline));
                           }}),
    [](const testing::TestParamInfo<Faulty>& info) { return std::string(info.param.name); });

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
  EXPECT_LE(device_.live().events, 70u * streams.size());
}

}  // namespace
}  // namespace weir
