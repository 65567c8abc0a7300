// Each invariant is broken, one at a time, in a heap that has everything: validate() must name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// Two streams' heaps: large blocks with free page ends before and behind them, slabs, aliases, idle
// pages that others used, fences, and timelines that waited for each other.
class Corruption : public test::CoreHeap {
 protected:
  void SetUp() override {
    for (int i = 0; i < 14; ++i) large_.push_back(allocate(heap_, 4_MiB, a_));
    for (std::size_t i = 0; i < 14; i += 2) free(heap_, large_[i]);
    void* const split = allocate(heap_, 5_MiB, a_);  // two pages side by side: they have aliases
    middle_ = allocate(heap_, 3_MiB, a_);            // the rest of the second
    free(heap_, split);
    theirs_ = allocate(heap_, 3_MiB, b_);
    idle_ = allocate(heap_, 4_MiB, b_);
    for (int i = 0; i < 3; ++i) small_.push_back(allocate(heap_, 5_KiB, a_));
    free(heap_, small_[1]);
    ASSERT_TRUE(device_.launch(b_, 1_ms).ok());
    ASSERT_TRUE(heap_.fence(idle_, c_).ok());
    ASSERT_TRUE(heap_.fence(middle_, b_).ok());
    free(heap_, idle_);
    // Timelines: c waits for a, and then has an event.
    Timelines& timelines = TestAccess::timelines(heap_);
    FenceSet point;
    point.join(timelines.now(timelines.of(a_)));
    ASSERT_TRUE(timelines.wait(timelines.of(c_), point).ok());
    ASSERT_TRUE(timelines.record(timelines.of(c_)).ok());
    ASSERT_TRUE(timelines.record(timelines.of(c_)).ok());
    ASSERT_THAT(heap_.validate(), IsEmpty());
  }

  // With `member` changed, validate() says `text`; and nothing, once it is as it was.
  template <class Member, class Change>
  void expect_caught(Member& member, Change&& change, const std::string& text) {
    const Member kept = member;
    change(member);
    EXPECT_THAT(heap_.validate(), Contains(HasSubstr(text)));
    member = kept;
    EXPECT_THAT(heap_.validate(), IsEmpty());
  }
  void expect_caught(Bytes& member, const std::string& text) {
    expect_caught(member, [](Bytes& bytes) { bytes += kGrain; }, text);
  }

  PageTable& table() { return TestAccess::table(heap_); }
  Arena& arena(std::uint32_t heap) { return TestAccess::arena(heap_, HeapId{heap}); }
  StreamHeap& stream_heap(std::size_t id) { return TestAccess::stream_heap(heap_, id); }
  template <class Wanted>
  Page& page_that(Wanted&& wanted) {
    for (auto& [id, page] : TestAccess::pages(table())) {
      if (wanted(page)) {
        last_page_ = "page " + std::to_string(id) + ": ";
        last_id_ = PageId{id};
        return page;
      }
    }
    ADD_FAILURE() << "the heap has no such page";
    return TestAccess::pages(table()).begin()->second;
  }
  Page& leased_page() {
    return page_that([](const Page& page) { return page.lease == HeapId{0}; });
  }
  Page& part_used_page() {
    return page_that([](const Page& page) { return page.lease && page.used < page.size; });
  }
  Page& idle_page() {
    return page_that([](const Page& page) { return !page.lease; });
  }

  DeviceHeap heap_{device_, {.limit = 64_MiB}};
  std::vector<void*> large_, small_;
  void *middle_ = nullptr, *theirs_ = nullptr, *idle_ = nullptr;
  std::string last_page_;
  PageId last_id_;
};

TEST_F(Corruption, IndexesOfRangesAreChecked) {
  for (RangeSet* const set : {&TestAccess::usable(arena(0)), &TestAccess::vacant(arena(0))}) {
    const std::string text = "heap 0: an index of its addresses is wrong";
    ASSERT_FALSE(set->empty());
    expect_caught(*set, [](RangeSet& s) { TestAccess::by_size(s).clear(); }, text);
    expect_caught(
        *set, [](RangeSet& s) { TestAccess::by_size(s).emplace(1_B, Address{1}); }, text);
    expect_caught(
        *set,
        [](RangeSet& s) {
          const auto [size, at] = *TestAccess::by_size(s).begin();
          TestAccess::by_size(s).erase({size, at});
          TestAccess::by_size(s).emplace(size + kGrain, at);
        },
        text);
    expect_caught(
        *set,
        [](RangeSet& s) {  // two members that touch
          auto& members = TestAccess::by_address(s);
          const auto [at, size] = *members.begin();
          TestAccess::by_size(s).erase({size, at});
          members[at] = kGrain;
          members[at + kGrain] = size - kGrain;
          TestAccess::by_size(s).emplace(kGrain, at);
          TestAccess::by_size(s).emplace(size - kGrain, at + kGrain);
        },
        text);
  }
}

TEST_F(Corruption, UsableAddressesAreThoseThatThePagesSay) {
  RangeSet& usable = TestAccess::usable(arena(0));
  const std::string text = "heap 0: its usable addresses differ from what its pages say";
  const auto [at, size] = *usable.members().begin();
  expect_caught(usable, [&, at = at](RangeSet& s) { s.erase({at, kGrain}); }, text);
  expect_caught(
      usable, [&](RangeSet& s) { s.insert({Address::of(large_[1]), kGrain}); }, text);
}

TEST_F(Corruption, UsableAddressesAreMappedAndTheHeapsOwn) {
  const Address nowhere = arena(0).vacant().members().rbegin()->first + 64_MiB;
  expect_caught(
      TestAccess::usable(arena(0)), [&](RangeSet& s) { s.insert({nowhere, kGrain}); },
      "heap 0: usable, but not mapped");
  const Address theirs = Address::of(idle_);
  expect_caught(
      TestAccess::usable(arena(0)), [&](RangeSet& s) { s.insert({theirs, kGrain}); },
      "heap 0: usable addresses not its own");
}

TEST_F(Corruption, VacantAddressesAreReservedAndNotMapped) {
  RangeSet& vacant = TestAccess::vacant(arena(0));
  expect_caught(
      vacant, [&](RangeSet& s) { s.insert({Address::of(large_[1]), 512_B}); },
      "heap 0: vacant, but mapped");
  expect_caught(
      vacant, [&](RangeSet& s) { s.insert({Address{(1_MiB).count}, 512_B}); },
      "heap 0: vacant, but not reserved");
}

TEST_F(Corruption, TheCurrentRowOfAnArenaIsNumbered) {
  const std::string text = "its current row has no number";
  expect_caught(TestAccess::rows(heap_), [](auto& rows) { rows.erase(HeapId{0}); }, text);
  expect_caught(TestAccess::next_row(heap_), [](auto& next) { next = 0; }, text);
  expect_caught(TestAccess::frontier(arena(0)), [](Address& at) { at = Address{}; }, text);
}

TEST_F(Corruption, RowsDoNotTouch) {
  auto& mappings = TestAccess::mappings(table());
  const auto touching = [&] {
    return std::adjacent_find(mappings.begin(), mappings.end(), [&](const auto& a, const auto& b) {
      return a.first + table().page(a.second.page).size == b.first;
    });
  }();
  ASSERT_NE(touching, mappings.end());
  expect_caught(
      touching->second, [](Mapping& mapping) { mapping.row.value += 100; },
      "page table: two rows touch");
}

TEST_F(Corruption, RegionsAreWhatIsReserved) {
  expect_caught(
      TestAccess::regions(heap_), [](auto& regions) { regions.erase(regions.begin()); },
      "heap 0: mapped, but not reserved");
  const Range region = TestAccess::regions(heap_)[0].range;
  TestAccess::addresses(heap_).clear(region);
  EXPECT_THAT(heap_.validate(), Contains(HasSubstr("a run given out is not mapped")));
  TestAccess::addresses(heap_).set(region, HeapId{1});
  EXPECT_THAT(heap_.validate(), Contains(HasSubstr("heap 0: usable addresses not its own")));
  EXPECT_THAT(heap_.validate(), Contains(HasSubstr("in use by a heap that has no lease on it")));
  TestAccess::addresses(heap_).set(region, HeapId{0});
  EXPECT_THAT(heap_.validate(), IsEmpty());
}

TEST_F(Corruption, UsedRangesOfAPageAreSortedApartAndWithinIt) {
  Page& page = part_used_page();
  auto& ranges = page.used_ranges;
  const auto [offset, size] = *ranges.begin();
  const std::string overlap = last_page_ + "its used ranges overlap or touch";
  ASSERT_GT(size, kGrain * 2);
  expect_caught(
      ranges, [o = offset](auto& r) { r[o + kGrain] = kGrain; }, overlap);
  expect_caught(
      ranges,
      [o = offset, s = size](auto& r) {
        r[o] = kGrain;
        r[o + kGrain] = s - kGrain;
      },
      overlap);
  expect_caught(
      ranges, [&page](auto& r) { r[page.size + kGrain] = kGrain; },
      last_page_ + "a used range ends behind the page");
  expect_caught(
      ranges, [o = offset](auto& r) { r[o] += kGrain; },
      last_page_ + "its used bytes differ from its used ranges");
}

TEST_F(Corruption, UsedBytesOfAPageAreThoseGivenOut) {
  Page& page = part_used_page();
  // Count and ranges agree, yet nobody has these bytes.
  const std::map<Bytes, Bytes> kept = page.used_ranges;
  page.used_ranges.rbegin()->second -= kGrain;
  page.used -= kGrain;
  TestAccess::used(table()) -= kGrain;
  EXPECT_THAT(heap_.validate(),
              Contains(last_page_ + "its bytes in use are not those that were given out"));
  page.used_ranges = kept;
  page.used += kGrain;
  TestAccess::used(table()) += kGrain;
  EXPECT_THAT(heap_.validate(), IsEmpty());

  Page& other = part_used_page();
  expect_caught(other.used, last_page_ + "its used bytes differ from its used ranges");
}

TEST_F(Corruption, APageIsLeasedExactlyWhileItIsUsed) {
  Page& used = leased_page();
  expect_caught(
      used.lease, [](auto& lease) { lease.reset(); }, last_page_ + "leased, but idle");
  expect_caught(
      used.lease, [](auto& lease) { lease = HeapId{1}; },
      last_page_ + "in use by a heap that has no lease on it");
  expect_caught(
      used.lease, [](auto& lease) { lease = HeapId{99}; },
      last_page_ + "in use by a heap that has no lease on it");
  Page& idle = idle_page();
  expect_caught(
      idle.lease, [](auto& lease) { lease = HeapId{0}; }, last_page_ + "leased, but idle");
}

TEST_F(Corruption, SizesAndNumbersOfPagesAreChecked) {
  Page& page = leased_page();
  expect_caught(
      page.size, [](Bytes& size) { size += 2_MiB; }, "the sums of total, leased or used bytes");
  expect_caught(
      TestAccess::next_page(table()), [](auto& next) { next = 0; },
      "has a number that is yet to be given out");
}

TEST_F(Corruption, PagesAndMappingsNameEachOther) {
  Page& page = leased_page();
  const std::string name = last_page_;
  ASSERT_FALSE(page.mappings.empty());
  expect_caught(
      page.mappings, [](auto& mappings) { mappings.pop_back(); },
      "page table: mappings that no page lists");
  expect_caught(
      page.mappings, [](auto& mappings) { mappings.push_back(mappings.back()); },
      name + "lists a mapping twice");
  Page& other = page_that([](const Page& p) { return p.lease == HeapId{1}; });
  expect_caught(
      page.mappings, [&](auto& mappings) { mappings.push_back(other.mappings[0]); },
      name + "lists a mapping that is not its own");
  for (const auto& change : std::vector<void (*)(Mapping&)>{
           [](Mapping& m) { m.heap = HeapId{1}; }, [](Mapping& m) { m.row.value += 7; },
           [](Mapping& m) { m.at = m.at + 2_MiB; }}) {
    expect_caught(page.mappings.front(), change, name + "lists a mapping that is not its own");
  }

  auto& mappings = TestAccess::mappings(table());
  const Address at = page.mappings.front().at;
  expect_caught(
      mappings, [&](auto& m) { m.erase(at); }, name + "lists a mapping that is not its own");
  expect_caught(
      mappings[at], [](Mapping& m) { m.heap = HeapId{1}; },
      name + "lists a mapping that is not its own");
  expect_caught(
      mappings[at], [](Mapping& m) { m.heap = HeapId{99}; },
      "a mapping of a page or a heap that is not there");
  expect_caught(
      mappings[at], [](Mapping& m) { m.row.value += 7; },
      name + "lists a mapping that is not its own");
  expect_caught(
      mappings[at], [](Mapping& m) { m.page = PageId{9999}; },
      "page table: a mapping is of no page");
  expect_caught(
      mappings[at], [](Mapping& m) { m.at = m.at + kGrain; },
      "page table: a mapping is not where it says");
  expect_caught(
      mappings,
      [&](auto& m) { m[at + 512_B] = {at + 512_B, m[at].page, m[at].heap, m[at].row}; },
      "page table: two mappings overlap");
}

TEST_F(Corruption, ARunOfUsableAddressesHasNoPageTwice) {
  // The two mappings of an idle page side by side, as addresses go.
  auto& mappings = TestAccess::mappings(table());
  auto first = mappings.begin(), second = mappings.end();
  for (; first != mappings.end(); ++first) {
    second = std::next(first);
    if (second == mappings.end()) break;
    const auto is_idle = [&](const Mapping& m) { return !table().page(m.page).lease; };
    const Bytes size = table().page(first->second.page).size;
    if (first->first + size == second->first && is_idle(first->second) && is_idle(second->second)) {
      break;
    }
  }
  if (second == mappings.end()) GTEST_SKIP() << "no two idle pages side by side";
  expect_caught(
      second->second, [&](Mapping& m) { m.page = first->second.page; },
      "heap 0: a run has a page twice");
}

TEST_F(Corruption, IndexesOfPagesAreChecked) {
  const Bytes size = idle_page().size;
  auto& idle = TestAccess::idle(table());
  const std::string text = "page table: the index of idle pages is wrong";
  expect_caught(idle, [&](auto& index) { index.erase({size, last_id_}); }, text);
  expect_caught(idle, [&](auto& index) { index.emplace(size + 2_MiB, last_id_); }, text);
  (void)leased_page();
  expect_caught(idle, [&](auto& index) { index.emplace(2_MiB, last_id_); }, text);

  const std::string ends = "page table: the index of heap 0's free page ends is wrong";
  auto& tails = TestAccess::tails(table(), HeapId{0});
  auto& heads = TestAccess::heads(table(), HeapId{0});
  for (auto* const index : {&tails, &heads}) {
    ASSERT_FALSE(index->empty());
    expect_caught(*index, [](auto& i) { i.erase(i.begin()); }, ends);
    expect_caught(*index, [](auto& i) { i.emplace(77_B, PageId{9999}); }, ends);
  }
}

TEST_F(Corruption, SumsOfThePageTableAreChecked) {
  const std::string text = "page table: the sums of total, leased or used bytes are wrong";
  expect_caught(TestAccess::total(table()), text);
  expect_caught(TestAccess::leased(table()), text);
  expect_caught(TestAccess::used(table()), text);
}

TEST_F(Corruption, UsersOfPagesAreKnown) {
  auto& uses = TestAccess::uses(heap_);
  (void)leased_page();
  const std::string leased = last_page_;
  expect_caught(
      uses, [&](auto& u) { u.erase(last_id_.value); }, leased + "nothing is known of its users");
  expect_caught(
      uses, [](auto& u) { u[9999]; }, "page heap: pages and their users differ in number");
  expect_caught(
      uses[last_id_.value], [](auto& use) { use.donor = Fence{}; },
      leased + "leased, yet it has a donor");
  (void)idle_page();
  expect_caught(
      uses[last_id_.value], [](auto& use) { use.donor.reset(); },
      last_page_ + "idle after use, yet it has no donor");
  expect_caught(
      uses[last_id_.value], [](auto& use) { use.freed_at += 1000; },
      last_page_ + "freed by a request yet to come");
}

TEST_F(Corruption, ThePeakIsAtLeastWhatIsUsed) {
  expect_caught(
      TestAccess::peak_used(heap_), [](Bytes& peak) { peak = kGrain; },
      "page heap: more in use than the peak");
}

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
  expect_caught(free, [at = at](RangeSet& f) { f.erase({at, kGrain}); }, between);
  expect_caught(
      free, [](RangeSet& f) { f.insert({Address{1 << 20}, kGrain}); }, between);
  expect_caught(
      free, [](RangeSet& f) { TestAccess::by_size(f).clear(); },
      "heap 0: slabs: an index of the free bytes is wrong");
}

TEST_F(Corruption, BlocksHaveTheBytesThatWereAskedFor) {
  auto& blocks = TestAccess::blocks(stream_heap(0));
  auto& block = blocks.at(Address::of(large_[1]));
  const std::string rounded =
      "heap 0: a block's size is not what was asked for, rounded up";
  expect_caught(block.bytes, rounded);
  expect_caught(block.requested, rounded);
  const std::string recount = "heap 0: its statistics differ from a recount of its blocks";
  expect_caught(block.bytes, recount);
  expect_caught(block.requested, [](Bytes& bytes) { bytes -= 1_B; }, recount);
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
      blocks,
      [&](auto& all) { all.emplace(Address{1 << 20}, all.at(Address::of(large_[1]))); },
      "page heap: a run given out is not mapped");
  expect_caught(
      blocks,
      [&](auto& all) { all.emplace(Address::of(theirs_), all.at(Address::of(large_[1]))); },
      "a byte was given out twice");
}

TEST_F(Corruption, AStreamHeapHasItsStreamsTimeline) {
  const std::string text = "heap 0: its timeline is another stream's";
  expect_caught(
      TestAccess::timeline(stream_heap(0)), [](TimelineId& id) { ++id.value; }, text);
  expect_caught(TestAccess::stream(stream_heap(0)), [&](Stream& stream) { stream = b_; }, text);
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
