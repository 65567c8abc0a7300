// SPDX-License-Identifier: Apache-2.0
// The first call from which places depend on time, as far as a recording shows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "look/report.h"
#include "replay/report_table.h"
#include "tests/unit/look_recordings.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::Not;
using Why = TimeDependence::Why;

std::optional<TimeDependence> found_in(const Recording& recording) {
  return report_of(recording).time_dependence;
}

// Stream 2 gets the memory that stream 1 freed; `between`: after the free.
HandMade handed_over(const std::function<void(HandMade&)>& between) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 1_KiB, 1).deallocate(kAt);
  between(made);
  return made.allocate(kAt, 1_KiB, 2);
}

TEST(TimeDependence, IsTheFirstCallThatGotAnotherStreamsMemoryWithoutAWait) {
  const auto found = found_in(handed_over([](HandMade&) {}).recording);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->why, Why::asked);
  EXPECT_EQ(found->call, 3u);
  HandMade ring = handed_over([](HandMade&) {});
  ring.recording.calls_before = 1000;
  EXPECT_EQ(found_in(ring.recording)->call, 1003u);
}

TEST(TimeDependence, IsNotWhereAWaitOrdersTheTwo) {
  const auto host_wait = Event{.kind = EventKind::host_wait, .other = 7};
  for (const auto& between : std::vector<std::function<void(HandMade&)>>{
           [](HandMade& made) { made.wait(2, 1); },
           [](HandMade& made) { made.wait(2, Stream::all().id); },
           [](HandMade& made) { made.wait(3, 1).wait(2, 3); },
           [&](HandMade& made) { made.add(host_wait); }}) {
    EXPECT_FALSE(found_in(handed_over(between).recording));
  }
  // A wait of before the free orders nothing.
  HandMade early;
  early.page(0).map(0, kAt).allocate(kAt, 1_KiB, 1).wait(2, 1).deallocate(kAt);
  EXPECT_TRUE(found_in(early.allocate(kAt, 1_KiB, 2).recording));
}

TEST(TimeDependence, IsWhereMemoryOfAnotherPoolIsHandedOver) {
  HandMade made;
  made.add({.kind = EventKind::heap_open, .heap = {1}, .stream = 1, .pool = 4});
  made.page(0).map(0, kAt).allocate(kAt, 1_KiB, 1, 1).deallocate(kAt);
  made.wait(1, Stream::all().id).allocate(kAt, 1_KiB, 1, 0);
  ASSERT_TRUE(found_in(made.recording));
  EXPECT_EQ(found_in(made.recording)->why, Why::asked);
}

TEST(TimeDependence, IsAfterTheCallBeforeAPageWentBackUnlessTheHostWaitedOrItsPoolSleeps) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 1_KiB).deallocate(kAt).unmap(0, kAt).release(0);
  const auto found = found_in(made.recording);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->why, Why::released);
  EXPECT_EQ(found->call, 2u);
  HandMade waited;
  waited.page(0).map(0, kAt).allocate(kAt, 1_KiB).deallocate(kAt);
  waited.add({.kind = EventKind::host_wait, .other = 1}).unmap(0, kAt).release(0);
  EXPECT_FALSE(found_in(waited.recording));
  HandMade asleep;
  asleep.page(0).map(0, kAt).allocate(kAt, 1_KiB).allocate(kAt + 4096, 1_KiB).deallocate(kAt);
  asleep.unmap(0, kAt).release(0);
  EXPECT_FALSE(found_in(asleep.recording));
}

TEST(TimeDependence, IsWhereEventsOfTheContextWereLostAndIsSaid) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 1_KiB).wait(1, 2);
  const Report without = report_of(made.recording);
  EXPECT_THAT(report_text(without), Not(HasSubstr("Places depend on time")));
  EXPECT_TRUE(nlohmann::json::parse(report_json(without))["time_dependence"].is_null());
  made.add({.kind = EventKind::context_events_lost});
  const Report with = report_of(made.recording);
  EXPECT_THAT(report_text(with),
              HasSubstr("Places depend on time after call 1, at 4.00 us: events "));
  EXPECT_EQ(nlohmann::json::parse(report_json(with))["time_dependence"]["why"],
            "context_events_lost");
  HandMade moved;
  moved.page(0).map(0, kAt).allocate(kAt, 1_KiB).add({.kind = EventKind::region_elsewhere});
  EXPECT_THAT(report_text(report_of(moved.recording)),
              HasSubstr("Addresses depend on the process after call 1, at 3.00 us"));
}

}  // namespace
}  // namespace weir
