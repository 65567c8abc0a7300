// Each invariant of blocks, timelines and statistics is broken, one at a time: validate() must name
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

TEST_F(Corruption, SlabsAreWhatTheSmallBlocksSay) {
  Slabs& slabs = TestAccess::slabs(stream_heap(0));
  auto& used = TestAccess::used(slabs);
  const std::string counted = "heap 0: slabs: the bytes in use of a slab are counted wrong";
  ASSERT_FALSE(used.empty());
  expect_caught(used.begin()->second, counted);
  expect_caught(
      used, [](auto& u) { u.erase(u.begin()); },
      "heap 0: slabs: a small block lies in no slab, or on another block");
  expect_caught(
      used, [](auto& u) { u.emplace(Address{1 << 30}, 0_B); },
      "heap 0: slabs: an empty slab is kept");
  expect_caught(
      used, [](auto& u) { u.emplace(u.begin()->first + 1_MiB, 0_B); },
      "heap 0: slabs: two slabs overlap");

  RangeSet& free = TestAccess::free(slabs);
  const std::string between = "heap 0: slabs: the free bytes are not those between the blocks";
  const auto [at, size] = *free.members().begin();
  expect_caught(
      free,
      [at = at](RangeSet& f) {
        f.erase({at, kGrain});
      },
      between);
  expect_caught(
      free,
      [](RangeSet& f) {
        f.insert({Address{1 << 20}, kGrain});
      },
      between);
  expect_caught(
      free, [](RangeSet& f) { TestAccess::by_size(f).clear(); },
      "heap 0: slabs: an index of the free bytes is wrong");
}

TEST_F(Corruption, BlocksHaveTheBytesThatWereAskedFor) {
  auto& blocks = TestAccess::blocks(stream_heap(0));
  auto& block = blocks.at(Address::of(large_[1]));
  const std::string rounded = "heap 0: a block's size is not what was asked for, rounded up";
  expect_caught(block.bytes, rounded);
  expect_caught(block.requested, rounded);
  const std::string recount = "heap 0: its statistics differ from a recount of its blocks";
  expect_caught(block.bytes, recount);
  expect_caught(
      block.requested, [](Bytes& bytes) { bytes -= 1_B; }, recount);
  expect_caught(
      blocks, [&](auto& all) { all.erase(Address::of(large_[1])); }, recount);
  expect_caught(
      blocks, [&](auto& all) { all.erase(Address::of(large_[1])); },
      "its bytes in use are not those that were given out");
}

TEST_F(Corruption, NoByteIsGivenOutTwice) {
  auto& blocks = TestAccess::blocks(stream_heap(0));
  expect_caught(
      blocks,
      [&](auto& all) {
        auto copy = all.at(Address::of(large_[1]));
        copy.bytes = copy.requested = 1_MiB;
        all.emplace(Address::of(large_[1]) + 1_MiB, copy);
      },
      "a byte was given out twice");
  expect_caught(
      blocks,
      [&](auto& all) {
        auto copy = all.at(Address::of(small_[0]));
        copy.bytes = copy.requested = kGrain;
        all.emplace(Address::of(small_[0]) + 1_KiB, copy);
      },
      "heap 0: slabs: a small block lies in no slab, or on another block");
  expect_caught(
      blocks, [&](auto& all) { all.emplace(Address{1 << 20}, all.at(Address::of(large_[1]))); },
      "page heap: a run given out is not mapped");
  expect_caught(
      blocks, [&](auto& all) { all.emplace(Address::of(theirs_), all.at(Address::of(large_[1]))); },
      "a byte was given out twice");
}

TEST_F(Corruption, AStreamHeapHasItsStreamsTimeline) {
  const std::string text = "heap 0: its timeline is another stream's";
  expect_caught(
      TestAccess::timeline(stream_heap(0)), [](TimelineId& id) { ++id.value; }, text);
  expect_caught(
      TestAccess::stream(stream_heap(0)), [&](Stream& stream) { stream = b_; }, text);
}

TEST_F(Corruption, SequencesOfTimelinesRise) {
  Timelines& timelines = TestAccess::timelines(heap_);
  const TimelineId c = timelines.of(c_);
  auto& mine = TestAccess::all(timelines).at(c.value);
  const std::string name = "timeline " + std::to_string(c.value) + ": ";
  ASSERT_GE(mine.events.size(), 2u);
  expect_caught(
      mine.events, [](auto& events) { std::swap(events.front(), events.back()); },
      name + "its events do not rise");
  expect_caught(
      mine.events, [](auto& events) { events.front().sequence = Sequence{0}; },
      name + "its events do not rise");
  expect_caught(
      mine.next, [](Sequence& next) { --next.value; }, name + "an event is from the future");
  expect_caught(
      mine.complete, [&](Sequence& complete) { complete = mine.next; },
      name + "complete beyond its last event");
  expect_caught(
      mine,
      [](auto& timeline) {
        timeline.retired = true;
        timeline.events.clear();
      },
      name + "retired without its last event");
}

TEST_F(Corruption, ClocksOfTimelinesKnowOnlyWhatHappened) {
  Timelines& timelines = TestAccess::timelines(heap_);
  const TimelineId a = timelines.of(a_), c = timelines.of(c_);
  auto& mine = TestAccess::all(timelines).at(c.value);
  const std::string name = "timeline " + std::to_string(c.value) + ": ";
  ASSERT_GT(mine.clock.size(), a.value);
  ASSERT_GT(mine.clock[a.value].value, 0u);
  expect_caught(
      mine.clock, [&](auto& clock) { clock[a.value].value += 1000; },
      name + "waited for an event that timeline " + std::to_string(a.value) + " never recorded");
  expect_caught(
      mine.clock, [](auto& clock) { clock.resize(50); },
      name + "waited for a timeline that is not there");
  expect_caught(
      mine.clock, [&](auto& clock) { clock[a.value] = Sequence{0}; },
      name + "an event knows of waits that were never made");
  expect_caught(
      mine.events, [&](auto& events) { events.back().clock[a.value].value += 1; },
      name + "an event knows of waits that were never made");
}

TEST_F(Corruption, EventsAndStreamsOfTimelinesAreKeptOnce) {
  Timelines& timelines = TestAccess::timelines(heap_);
  const TimelineId c = timelines.of(c_);
  auto& mine = TestAccess::all(timelines).at(c.value);
  const std::string twice = "timelines: an event is kept twice";
  expect_caught(
      mine.events, [](auto& events) { events.front().event = events.back().event; }, twice);
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
  expect_device_caught(EventKind::allocate, EventKind::deallocate, "live_blocks");
  expect_device_caught(EventKind::allocate, EventKind::deallocate, "live_bytes");
  expect_device_caught(EventKind::allocate, EventKind::deallocate, "requested_bytes");
}

TEST_F(CorruptStatistics, OfAStreamHeapAreCaught) {
  expect_heap_caught(EventKind::allocate, EventKind::deallocate,
                     "heap 1: its statistics differ from a recount of its blocks");
  expect_heap_caught(EventKind::lease, EventKind::unlease,
                     "statistics: the sum of the heaps' leased_bytes");
}

}  // namespace
}  // namespace weir
