// SPDX-License-Identifier: Apache-2.0
// Timelines: when work is known to be complete, and what is left of streams that are retired.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/core_test_access.h"
#include "tests/unit/core_timelines_fixture.h"

namespace weir {
namespace {

using test::set_of;
using test::TimelinesTest;
using testing::HasSubstr;
using testing::IsEmpty;

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
  EXPECT_TRUE(timelines_.retired(sa_));
  EXPECT_FALSE(timelines_.retired(sb_));
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
  EXPECT_EQ(device_.live().events, 1u);
  EXPECT_FALSE(complete(last));
  device_.advance(10_ms);
  EXPECT_TRUE(complete(last));
  EXPECT_TRUE(TestAccess::all(timelines_)[a_.value].events.empty());
  EXPECT_THAT(TestAccess::retired(timelines_), IsEmpty());
  EXPECT_TRUE(timelines_.record(b_).ok());  // with the same event
  EXPECT_EQ(device_.live().events, 1u);

  EXPECT_EQ(wait(b_, last), 0u);
  EXPECT_TRUE(timelines_.satisfied(last, c_));
  EXPECT_TRUE(complete(*timelines_.record(a_)));
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

// The last event covers what the others did: up to 64 streams are retired before anybody asks.
TEST_F(TimelinesTest, ARetiredStreamKeepsItsLastEventAlone) {
  std::vector<Fence> fences;
  for (int i = 0; i < 40; ++i) {
    work(sa_);
    fences.push_back(*timelines_.record(a_));
  }
  ASSERT_TRUE(timelines_.retire(a_).ok());
  EXPECT_EQ(TestAccess::all(timelines_)[a_.value].events.size(), 1u);
  EXPECT_EQ(wait(b_, fences.front()), 1u);
  EXPECT_EQ(wait(b_, fences.back()), 0u) << "it has waited for all of the stream's work";
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

TEST_F(TimelinesTest, EventsThatAreDroppedAreCoveredByTheLastOne) {
  work(sb_);
  ASSERT_EQ(wait(a_, timelines_.now(b_)), 1u);
  std::vector<Fence> fences;
  for (int i = 0; i < 40; ++i) {
    work(sa_);
    fences.push_back(*timelines_.record(a_));
  }
  timelines_.drop_events(/*complete=*/false);
  EXPECT_LE(device_.live().events, 2 + 16u) << "the last of each stream, and some to spare";
  EXPECT_EQ(wait(c_, fences.front()), 1u);
  EXPECT_TRUE(timelines_.satisfied(fences.back(), c_));
  EXPECT_GT(timelines_.past(c_, b_), Sequence{0}) << "with what its stream had waited for";
  timelines_.drop_events(/*complete=*/true);
  EXPECT_EQ(device_.live().events, 2u) << "both streams are still at work";
  device_.finish();
  timelines_.drop_events(/*complete=*/true);
  EXPECT_EQ(device_.live().events, 0u);
  EXPECT_TRUE(complete(fences.back()));
  EXPECT_EQ(wait(b_, *timelines_.record(a_)), 1u);
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
  EXPECT_LE(device_.live().events, 2 * 65u);  // of each, the one waited for and the last
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
    if (i == 63) {
      EXPECT_EQ(calls(DeviceCall::query), 0u) << "so many are kept in any case";
    }
  }
  EXPECT_EQ(device_.live().events, 100u);
  EXPECT_GT(calls(DeviceCall::query), 36u);
  EXPECT_LE(calls(DeviceCall::query), 36u * 4) << "a few each time";
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
    const Status waited = timelines_.wait(b_, set_of({point}));
    ASSERT_FALSE(waited.ok());
    EXPECT_EQ(waited.error().code(), ErrorCode::device);
    EXPECT_THAT(waited.error().message(), HasSubstr("on stream " + std::to_string(sa_.id)));
    EXPECT_THAT(waited.error().message(), HasSubstr("call retire() before"));
    EXPECT_FALSE(timelines_.satisfied(point, b_));
  }
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

// Once its work is complete, the clock of who waited for a fence may forget it.
TEST_F(TimelinesTest, ASatisfiedFenceStaysSoWhileItIsForgotten) {
  for (int round = 0; round < 100; ++round) {
    work(sa_, 1_us);
    const Fence fence = *timelines_.record(a_);
    EXPECT_TRUE(timelines_.wait(b_, set_of({fence})).ok());
    std::atomic<bool> forgotten = false;
    std::thread forgets([&] {
      EXPECT_TRUE(timelines_.host_wait(set_of({fence})).ok());
      const Stream brief = device_.new_stream();  // a clock forgets when it hears of another
      const TimelineId own = timelines_.of(brief);
      EXPECT_TRUE(device_.launch(brief, 1_us).ok());
      EXPECT_TRUE(timelines_.wait(b_, set_of({*timelines_.record(own)})).ok());
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

// Of a stream that may be gone no event can be had: the host waits for all streams instead, once.
TEST_F(TimelinesTest, AStreamThatMayBeGoneIsWaitedForThroughTheContext) {
  Stream gone = device_.new_stream();
  gone.may_end = true;
  const TimelineId timeline = timelines_.of(gone);
  work(gone, 5_ms);
  ASSERT_TRUE(device_.destroy_stream(gone).ok());
  const Fence point = timelines_.now(timeline);
  ASSERT_TRUE(timelines_.host_wait(set_of({point})).ok());
  EXPECT_GE(device_.now(), 5_ms);
  EXPECT_EQ(calls(DeviceCall::synchronize_context), 1u);
  EXPECT_EQ(calls(DeviceCall::synchronize), 0u);
  EXPECT_TRUE(timelines_.satisfied(point, b_));
  EXPECT_EQ(timelines_.now(timeline).sequence.value, point.sequence.value + 1) << "the next point";
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].kind, EventKind::host_wait);
  EXPECT_EQ(events_[0].other, gone.id);
  EXPECT_EQ(events_[0].sequence, point.sequence);
  EXPECT_GE(events_[0].duration, 4_ms);

  ASSERT_TRUE(timelines_.host_wait(set_of({point})).ok());
  EXPECT_EQ(calls(DeviceCall::synchronize_context), 1u);
  const Fence later = timelines_.now(timeline);
  EXPECT_FALSE(timelines_.satisfied(later, b_));
  device_.fail(DeviceCall::synchronize_context, 1);
  EXPECT_FALSE(timelines_.host_wait(set_of({later})).ok());
  EXPECT_FALSE(timelines_.satisfied(later, b_));
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

TEST_F(TimelinesTest, EveryEventIsGivenBackAtTheEnd) {
  {
    Timelines timelines(device_, observer_, captures_);
    const TimelineId a = timelines.of(sa_), b = timelines.of(sb_);
    for (int i = 0; i < 100; ++i) (void)timelines.record(a);
    ASSERT_TRUE(timelines.wait(b, set_of({timelines.now(a)})).ok());
    ASSERT_TRUE(timelines.host_wait(set_of({timelines.now(b)})).ok());
    EXPECT_GT(device_.live().events, 0u);
  }
  EXPECT_EQ(device_.live().events, 0u);
}

}  // namespace
}  // namespace weir
