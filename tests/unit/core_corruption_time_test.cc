// SPDX-License-Identifier: Apache-2.0
// Each invariant of timelines and statistics is broken, one at a time: validate() must name
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/unit/core_corruption_fixture.h"

namespace weir {
namespace {

using test::Corruption;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Corruption, SequencesOfTimelinesRise) {
  Timelines& timelines = TestAccess::timelines(heap_);
  const TimelineId c = timelines.of(c_);
  auto& mine = TestAccess::all(timelines)[c.value];
  const std::string name = "timeline " + std::to_string(c.value) + ": ";
  ASSERT_GE(mine.events.size(), 2u);
  expect_caught(
      mine.events, [](auto& events) { std::swap(events[0], events[events.size() - 1]); },
      name + "its events do not rise");
  expect_caught(
      mine.events, [](auto& events) { events[0].sequence = Sequence{0}; },
      name + "its events do not rise");
  expect_caught(
      mine.point, [&](auto& point) { point.store({mine.latest().value}); },
      name + "an event is from the future");
  expect_caught(
      mine.complete, [&](auto& complete) { complete.store(mine.point.load()); },
      name + "complete beyond its last event");
  expect_caught(
      mine,
      [](auto& timeline) {
        timeline.retired = true;
        timeline.events = {};
      },
      name + "retired without its last event");
  const std::string listed =
      "timelines: the retired streams that have an event are not those listed";
  expect_caught(
      mine.retired, [](bool& retired) { retired = true; }, listed);
  expect_caught(
      TestAccess::retired(timelines), [&](auto& retired) { retired.push_back(c); }, listed);
}

TEST_F(Corruption, ClocksOfTimelinesKnowOnlyWhatHappened) {
  Timelines& timelines = TestAccess::timelines(heap_);
  const TimelineId a = timelines.of(a_), c = timelines.of(c_);
  auto& mine = TestAccess::all(timelines)[c.value];
  const std::string name = "timeline " + std::to_string(c.value) + ": ";
  ASSERT_EQ(TestAccess::fences(mine.clock).at(0).timeline, a);
  ASSERT_GT(mine.clock.at(a).value, 0u);
  const auto fences = [](auto& clock) -> auto& { return TestAccess::fences(clock); };
  expect_caught(
      mine.clock, [&](auto& clock) { fences(clock)[0].sequence.value += 1000; },
      name + "waited for an event that timeline " + std::to_string(a.value) + " never recorded");
  expect_caught(
      mine.clock,
      [&](auto& clock) {
        fences(clock).push_back({TimelineId{50}, Sequence{1}});
      },
      name + "waited for a timeline that is not there");
  expect_caught(
      mine.clock, [&](auto& clock) { fences(clock).push_back(fences(clock)[0]); },
      name + "a clock is not in order of timelines");
  expect_caught(
      mine.clock,
      [&](auto& clock) {
        while (clock.size() <= VectorClock::kMost) fences(clock).push_back(fences(clock)[0]);
      },
      name + "a clock knows of too many timelines");
  expect_caught(
      mine.events, [&](auto& events) { fences(events.back().clock)[0].sequence.value += 1000; },
      name + "waited for an event that timeline " + std::to_string(a.value) + " never recorded");
}

TEST_F(Corruption, EventsAndStreamsOfTimelinesAreKeptOnce) {
  Timelines& timelines = TestAccess::timelines(heap_);
  const TimelineId c = timelines.of(c_);
  auto& mine = TestAccess::all(timelines)[c.value];
  const std::string twice = "timelines: an event is kept twice";
  expect_caught(
      mine.events, [](auto& events) { events[0].event = events.back().event; }, twice);
  expect_caught(
      TestAccess::spare_events(timelines),
      [&](auto& spare) { spare.push_back(mine.events.back().event); }, twice);
  expect_caught(
      TestAccess::by_stream(timelines), [&](auto& streams) { streams.erase(c_.id); },
      "timelines: streams and timelines differ in number");
  expect_caught(
      TestAccess::by_stream(timelines), [&](auto& streams) { streams[c_.id].value = 0; },
      "timeline " + std::to_string(c.value) + ": its stream has another timeline, or none");
}

// A counter that an event too many has moved.
class CorruptStatistics : public Corruption {
 protected:
  void expect_device_caught(EventKind kind, EventKind undo, const std::string& text) {
    Event event{.kind = kind, .bytes = kGrain, .requested = 1_B};
    DeviceFold& fold = TestAccess::observer(heap_).fold();
    fold.on_event(event);
    EXPECT_THAT(heap_.validate(), Contains(HasSubstr("statistics: " + text)));
    event.kind = undo;
    fold.on_event(event);
    EXPECT_THAT(heap_.validate(), IsEmpty());
  }
  void expect_heap_caught(EventKind kind, EventKind undo, const std::string& text) {
    Event event{.kind = kind, .stream = b_.id, .bytes = kGrain, .requested = 1_B};
    event.heap = HeapId{1};
    HeapFold& fold = TestAccess::fold(stream_heap(1));
    fold.on_event(event);
    EXPECT_THAT(heap_.validate(), Contains(HasSubstr(text)));
    event.kind = undo;
    fold.on_event(event);
    EXPECT_THAT(heap_.validate(), IsEmpty());
  }
};

TEST_F(CorruptStatistics, OfTheDeviceAreCaught) {
  expect_device_caught(EventKind::create, EventKind::release, "reserved_bytes");
  expect_device_caught(EventKind::create, EventKind::release, "pages");
  expect_device_caught(EventKind::map, EventKind::unmap, "mappings");
  expect_device_caught(EventKind::map, EventKind::unmap, "mapped_bytes");
  expect_device_caught(EventKind::lease, EventKind::unlease, "leased_bytes");
}

TEST_F(CorruptStatistics, OfAStreamHeapAreCaught) {
  expect_heap_caught(EventKind::allocate, EventKind::deallocate,
                     "heap 1: its statistics differ from a recount of its blocks");
}

}  // namespace
}  // namespace weir
