// SPDX-License-Identifier: Apache-2.0
// Each rule of tiles, pages, stitched rows, page heaps, stream heaps, slabs, timelines and
// statistics is broken, one at a time: validate() must name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir::test {
namespace {

struct Case {
  std::string text;  // that validate() says
  std::function<void()> change;
};

// Two streams' heaps: large blocks with free bytes between them that several streams freed, slabs,
// stitched rows, idle pages that others used, fences, and timelines that waited for each other.
class BrokenRules : public CoreHeap {
 protected:
  void SetUp() override {
    for (int i = 0; i < 14; ++i) large_.push_back(allocate(heap_, 4_MiB, a_));
    for (std::size_t i = 0; i < 14; i += 2) free(heap_, large_[i]);
    theirs_ = allocate(heap_, 3_MiB, b_);
    void* const idle = allocate(heap_, 4_MiB, b_);
    stitched_ = allocate(heap_, 7_MiB, a_);  // two pages that lie apart
    void* const unstitched = allocate(heap_, 6_MiB, a_);
    void* const middle = allocate(heap_, 1_MiB, a_);
    free(heap_, unstitched);
    for (int i = 0; i < 3; ++i) small_.push_back(allocate(heap_, 9_KiB, a_));
    free(heap_, small_[1]);
    ASSERT_TRUE(device_.launch(b_, 1_ms).ok());
    ASSERT_TRUE(heap_.fence(idle, c_).ok());
    ASSERT_TRUE(heap_.fence(middle, b_).ok());
    free(heap_, idle);
    // Timelines: c waits for a, and then has an event.
    Timelines& timelines = TestAccess::timelines(heap_);
    FenceSet point;
    point.join(timelines.now(timelines.of(a_)));
    ASSERT_TRUE(timelines.wait(timelines.of(c_), point).ok());
    ASSERT_TRUE(timelines.record(timelines.of(c_)).ok());
    ASSERT_TRUE(timelines.record(timelines.of(c_)).ok());
    ASSERT_THAT(heap_.validate(), testing::IsEmpty());
  }

  void on_undo(std::function<void()> step) { undo_.push_back(std::move(step)); }
  void undo() {
    for (; !undo_.empty(); undo_.pop_back()) undo_.back()();
  }
  // After a change validate() says `text`; and nothing, once it is undone.
  void expect_caught(const std::function<void()>& change, const std::string& text) {
    SCOPED_TRACE(text);
    change();
    EXPECT_THAT(heap_.validate(), testing::Contains(testing::HasSubstr(text)));
    undo();
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
  }
  void expect_each_caught(const std::vector<Case>& cases) {
    for (const Case& one : cases) expect_caught(one.change, one.text);
  }
  // Ways to change something until undo().
  std::function<void()> both(std::function<void()> change, std::function<void()> undo) {
    return [this, change, undo] {
      change();
      on_undo(undo);
    };
  }
  template <class Member, class Change>
  std::function<void()> changed(Member& member, Change change) {
    return [this, &member, change] {
      on_undo([&member, kept = Member(member)] { member = kept; });
      change(member);
    };
  }
  template <class Member, class Value>
  std::function<void()> to(Member& member, Value value) {
    return changed(member, [value](Member& now) { now = static_cast<Member>(value); });
  }
  template <class Member, class Value>
  void set(Member& member, Value value) {
    to(member, value)();
  }

  static void add_uses(BlockUsesPtr& uses) { (void)uses.get(); }
  TileIndex& index() { return TestAccess::index(heap_); }
  Tiles& tiles() { return tables().tiles; }
  StitchedRows& rows() { return tables().rows; }
  StreamHeap& stream_heap(std::size_t id) { return TestAccess::stream_heap(heap_, id); }
  PageTables& tables() { return TestAccess::tables(heap_); }
  // The run that the address lies in.
  Tile& run(const void* at) { return *TestAccess::pages(heap_).find_tile(Address::of(at)); }
  SmallTile& small(const void* at) { return *run(at).slab->tile_at(Address::of(at)); }

  // The first of them that is wanted.
  template <class Wanted>
  Tile& tile_that(Wanted&& wanted) {
    const Tile* tile = tables().tiles.first();
    while (tile != nullptr && !wanted(*tile)) tile = tables().tiles.after(tile);
    if (tile == nullptr) throw std::logic_error("the heap has no such tile");
    return *tables().tiles.at(tile->begin);
  }
  Tile& vacant_tile() {
    return tile_that([](const Tile& tile) { return tile.kind == Tile::Kind::vacant; });
  }
  // A free one that was used.
  Tile& freed_tile() {
    return tile_that([](const Tile& tile) { return tile.is_free() && tile.by != Tile::kNobody; });
  }
  Page& page_that(bool idle) {
    for (auto& [id, page] : tables().pages.all()) {
      if (page.idle() == idle) return page;
    }
    throw std::logic_error("the heap has no such page");
  }
  StitchedRow& row_of(StitchedRow::State state) {
    StitchedRow* found = nullptr;
    tables().rows.visit_all([&](StitchedRow& row) {
      if (row.state == state) found = &row;
    });
    if (found == nullptr) throw std::logic_error("the heap has no such row");
    return *found;
  }

  DeviceHeap heap_{device_, {.limit = 64_MiB}};
  std::vector<void*> large_, small_;
  void *theirs_ = nullptr, *stitched_ = nullptr;
  std::vector<std::function<void()>> undo_;
};

TEST_F(BrokenRules, OfTilesAreCaught) {
  Tile &used = run(large_[1]), &free = freed_tile(), &vacant = vacant_tile();
  Tile& head = *tiles().run_around(free.range());
  Tile& whole = tile_that([](const Tile& tile) {
    return tile.is_free() && tile.begin.value % (2_MiB).count == 0 && tile.size >= 2_MiB;
  });
  auto& runs = TestAccess::runs(tiles());
  auto& vacant_bins = TestAccess::vacant(tiles());
  expect_each_caught({
      {"it does not begin where the one before ends", to(free.size, free.size - kGrain)},
      {"it does not begin where the one before ends", to(used.size, 0_B)},
      {"linked wrong", to(used.after->before, nullptr)},
      {"free, yet in the index",
       both([&] { index().enter(&whole); }, [&] { index().leave(&whole); })},
      {"not in the index", both([&] { index().leave(&used); }, [&] { index().enter(&used); })},
      {"vacant, of another size", to(vacant.run, vacant.run - 2_MiB)},
      {"without memory, yet with users",
       both([&] { add_uses(vacant.uses); }, [&] { vacant.uses.reset(); })},
      {"vacant, as the next is", to(vacant.before->kind, Tile::Kind::vacant)},
      {"free, with fences that came late",
       both([&] { add_uses(free.late); }, [&] { free.late.reset(); })},
      {"its run is another than its head says", to(head.run, head.run + kGrain)},
      {"its run is another than its head says", to(head.tiles, head.tiles + 1)},
      {"its run is another than its head says", to(head.edge, head.after)},
      {"tiles: they end before their region does",
       [&] {
         auto& region = TestAccess::regions(tiles()).begin()->second;
         set(region.end, region.end + 2_MiB);
       }},
      {"tiles: a run is not listed", to(TestAccess::count(runs), runs.count() + 1)},
      {"tiles: a vacant one is not listed",
       to(TestAccess::count(vacant_bins), vacant_bins.count() + 1)},
      {"tiles: the bytes in use are summed wrong",
       to(TestAccess::used(tiles()), tiles().used() + kGrain)},
      {"runs: a bit is wrong", to(TestAccess::filled(runs)[0], TestAccess::filled(runs)[0] ^ 1)},
      {"runs: more than counted", to(TestAccess::count(runs), runs.count() - 1)},
      {"runs: fewer than counted", to(TestAccess::count(runs), runs.count() + 1)},
      {"runs: one of another size", to(head.run, head.run * 2)},
      {"runs: a list is linked wrong", to(head.previous, &head)},
  });
}

TEST_F(BrokenRules, OfPagesAreCaught) {
  HomePages& pages = tables().pages;
  Page &used = page_that(/*idle=*/false), &idle = page_that(/*idle=*/true);
  Budget& budget = TestAccess::budget(heap_);
  const std::string name = "page " + std::to_string(used.id.value) + ": ";
  expect_each_caught({
      {"found by another's number", to(used.id, PageId{9999})},
      {name + "not made of granules", to(used.size, 0_B)},
      {name + "not made of granules", to(used.size, used.size + kGrain)},
      {name + "not made of granules", to(used.home, used.home + kGrain)},
      {name + "not found at its addresses", to(used.home, used.home + 1_GiB)},
      {name + "not found at its addresses",
       [&] {
         index().set_page({used.home, 2_MiB}, &idle);
         on_undo([&] { index().set_page({used.home, 2_MiB}, &used); });
       }},
      {"pages: their sizes are summed wrong", to(TestAccess::total(pages), pages.total() + 2_MiB)},
      {"idle, yet leased", to(idle.lease, HeapId{0})},
      {name + "in use, yet not leased", to(used.lease, std::nullopt)},
      {name + "kept, yet it is said that none is", to(used.kept, Page::Kept::yes)},
      {name + "kept for a capture, and none goes on", to(used.kept, Page::Kept::for_now)},
      {"pages: none is kept, yet it is said that one is", to(tables().keeps_any, true)},
      {"pages: those in use are summed wrong", to(tables().leased, tables().leased + 2_MiB)},
      {"budget: not what the page heaps hold",
       both([&] { budget.take(2_MiB); }, [&] { budget.give_back(2_MiB); })},
  });
}

TEST_F(BrokenRules, OfStitchedRowsAreCaught) {
  StitchedRow &used = row_of(StitchedRow::State::used), &idle = row_of(StitchedRow::State::idle);
  StitchedRow& lower = used.begin < idle.begin ? used : idle;
  auto& vacant = TestAccess::vacant(rows());
  Page& first = *idle.pages.front();
  expect_each_caught({
      {"found by another address", to(used.begin, used.begin + 2_MiB)},
      {"overlaps the one before", to(lower.reserved, lower.reserved + 1_GiB)},
      {"has a page twice", to(idle.pages.back(), idle.pages.front())},
      {"a page of it does not know it", to(first.rows, std::vector<StitchedRow*>{})},
      {"larger than its addresses", to(idle.reserved, idle.reserved - 2_MiB)},
      {"used by nobody, or the reverse", to(used.tile, nullptr)},
      {"used by nobody, or the reverse", to(idle.tile, used.tile)},
      {"its size is not that of its pages", to(idle.size, idle.size + kGrain)},
      {"its size is not that of its pages",
       [&] {
         set(idle.size, idle.mapped() - first.size);
         set(idle.lead, first.size);
       }},
      {"stitched rows: mappings are counted wrong",
       to(TestAccess::mappings(rows()), rows().mappings() + 1)},
      {"stitched rows: one is idle, and not listed", to(idle.state, StitchedRow::State::retired)},
      {"stitched rows: vacant addresses are listed wrong",
       both([&] { vacant.emplace(2_MiB, used.begin); },
            [&] {
              vacant.erase({2_MiB, used.begin});
            })},
      {"retired, and nobody is going to unmap it; or the reverse",
       [&] {
         auto& retired = TestAccess::retired(heap_);
         retired.push_back(&idle);
         on_undo([&] { retired.pop_back(); });
       }},
      {"its bytes are not its parts", to(used.parts.back(), used.parts.front())},
      {"its bytes are not its parts", to(used.parts.front()->row, &idle)},
      {"in a row that does not have it",
       [&] {
         Page& other = page_that(/*idle=*/true);
         other.rows.push_back(&used);
         on_undo([&] { other.rows.pop_back(); });
       }},
  });
}

TEST_F(BrokenRules, OfAPageHeapAreCaught) {
  Tile &used = run(large_[1]), &free = freed_tile(), &vacant = vacant_tile();
  Page& page = page_that(/*idle=*/false);
  StitchedRow& row = row_of(StitchedRow::State::used);
  auto& strays = TestAccess::strays(heap_);
  auto& regions = TestAccess::regions(heap_);
  const auto hold = [&](PhysicalHandle handle) {
    tables().held.push_back({PageId{9999}, {handle, 2_MiB}});
    set(tables().held_bytes, tables().held_bytes + 2_MiB);
    on_undo([&] { tables().held.pop_back(); });
  };
  const auto stray_at = [&](Address at) {
    strays.push_back({at, 2_MiB});
    on_undo([&] { strays.pop_back(); });
  };
  const std::string stray = "page heap: a stray mapping lies where a page is mapped";
  const std::string held = "page heap: a page is held unmapped that is mapped, or held twice";
  expect_each_caught({
      {"page heap: more in use than the peak", to(tables().peak_used, kGrain)},
      {"page heap: what is held unmapped is summed wrong", to(tables().held_bytes, 2_MiB)},
      {held, [&] { hold(page.handle); }},
      {held,
       [&] {
         hold(PhysicalHandle{9999});
         hold(PhysicalHandle{9999});
       }},
      {stray, [&] { stray_at(page.home); }},
      {stray, [&] { stray_at(row.begin); }},
      {stray, [&] { stray_at(Address{2 << 20}); }},
      {"its addresses are not those of the rows in it",
       to(regions[0].size, regions[0].size + 2_MiB)},
      {"tiles: one has no memory",
       [&] {
         const Range some{vacant.end() - 2_MiB, 2_MiB};
         tiles().fill(some);
         on_undo([this, some] { tiles().vacate(some); });
       }},
      {"tiles: bytes freed by a request yet to come", to(free.freed_at, free.freed_at + 1000)},
      {"tiles: somebody must be waited for, yet it is said that nobody need be",
       to(tables().single_timeline, true)},
      {"its bytes are not in use, or not by it alone", to(used.kind, Tile::Kind::part)},
      {"tiles: bytes are in use that were not given out",
       [&] {
         Tile*& runs = TestAccess::runs(stream_heap(0));
         set(runs, runs->next);
       }},
  });
  stray_at(vacant.begin);
  stray_at(row.begin + row.mapped());
  EXPECT_THAT(heap_.validate(), testing::IsEmpty()) << "there is no page";
  undo();
}

TEST_F(BrokenRules, OfWhatSleepsAreCaught) {
  ASSERT_TRUE(heap_.tags().sleep({.tags = {}, .contents = SleepContents::discard}).ok());
  Page& page = page_that(/*idle=*/false);
  ASSERT_TRUE(page.sleeps());
  expect_each_caught({
      {"page heap: what sleeps is summed wrong",
       to(tables().absent_mappings, tables().absent_mappings + 1)},
      {"page heap: what sleeps is summed wrong", to(page.unmapped, page.unmapped - 1)},
      {"lacks mappings it never had", to(page.unmapped, page.unmapped + 1)},
      {"mapped without memory", to(page.unmapped, page.unmapped - 1)},
  });
  ASSERT_TRUE(heap_.tags().wake().ok());
  expect_caught(to(page.handle, PhysicalHandle{}), "without memory, in a page heap that is awake");
}

// In plain memory.
TEST(BrokenRulesOfSegments, AreCaught) {
  SimDevice device;
  const Stream stream = device.new_stream();
  DeviceHeap heap(device, {.memory = MemoryKind::plain});
  for (int i = 0; i < 2; ++i) (void)heap.allocate(6_MiB, stream).value();
  auto& segments = TestAccess::regions(heap);
  ASSERT_EQ(segments.size(), 2u);
  const auto kept = segments;
  const auto expect_caught = [&](const std::string& text) {
    EXPECT_THAT(heap.validate(), testing::Contains(testing::HasSubstr(text)));
    segments = kept;
    EXPECT_THAT(heap.validate(), testing::IsEmpty());
  };
  segments[0].size = 4_MiB;
  expect_caught("its addresses are not one page");
  segments.pop_back();
  expect_caught("page heap: its pages are not its segments");
}

TEST_F(BrokenRules, OfStreamHeapsAreCaught) {
  StreamHeap& heap = stream_heap(0);
  Tile &large = run(large_[1]), &slab = run(small_[0]), &theirs = run(theirs_);
  SmallTile &live = small(small_[0]), &cached = small(small_[1]);
  auto& kept = TestAccess::kept(heap);
  auto& all_cached = TestAccess::cached(heap);
  ASSERT_EQ(kept, 1u);
  ASSERT_EQ(cached.state, BlockState::cached);
  const std::string place = "heap 0: a block's size does not suit its place";
  const std::string rounded = "heap 0: a block's size is not what was asked for, rounded up";
  const std::string at_address = "heap 0: a block is not found at its addresses";
  const std::string in_cache =
      "heap 0: a block is cached and not kept, or kept twice, or the reverse";
  const std::string timeline = "heap 0: its timeline is another stream's";
  const std::string slab_run = "heap 0: a slab and its run do not know each other";
  const auto other_heap = both([&] { large.heap = &stream_heap(1); }, [&] { large.heap = &heap; });
  const auto keep = [&](BlockRef block) {
    set(all_cached[1], std::remove_reference_t<decltype(all_cached[1])>{block.size(), block});
    set(kept, 2);
  };
  expect_each_caught({
      {place, to(large.size, 4_KiB)},
      {place, to(live.grains, 2048)},
      {rounded, to(large.requested, large.requested + kGrain)},
      {rounded, to(live.held.requested, live.held.requested + 1024)},
      {in_cache, to(kept, 0)},
      {in_cache, to(large.state, BlockState::cached)},
      {in_cache, to(cached.state, BlockState::live)},
      {in_cache, [&] { keep(BlockRef(&cached)); }},
      {"heap 0: a block is cached that it does not have", [&] { keep(BlockRef(&theirs)); }},
      {at_address, to(small(small_[2]).first_grain, live.first_grain)},
      {at_address, both([&] { index().leave(&large); }, [&] { index().enter(&large); })},
      {timeline, to(TestAccess::timeline(heap), TimelineId{1})},
      {timeline, to(TestAccess::stream(heap), b_)},
      {timeline, to(TestAccess::serves(heap), b_.id)},
      {"heap 0: a run of it is another heap's", other_heap},
      {"heap 0: its runs are linked wrong", to(TestAccess::runs(heap)->next->previous, nullptr)},
      {slab_run, to(slab.slab->run, &large)},
      {slab_run, to(slab.slab->begin, slab.slab->begin - 1_MiB)},
      {"heap 0: the live bytes of a slab are counted wrong",
       to(slab.slab->live, slab.slab->live + kGrain)},
      {"heap 0: a slab is not among its runs",
       [&] {
         Tile*& runs = TestAccess::runs(heap);
         ASSERT_EQ(runs, &slab);
         set(runs, runs->next);
       }},
      {"heap 0: its statistics differ from a recount of its blocks",
       to(large.requested, large.requested - 1_B)},
  });
}

TEST_F(BrokenRules, OfSlabsAreCaught) {
  Slab& slab = *run(small_[0]).slab;
  SmallTile &first = small(small_[0]), &cached = small(small_[1]), &last = small(small_[2]);
  SmallTile& free = *last.after;
  ASSERT_EQ(free.state, BlockState::free);
  Slabs& slabs = TestAccess::slabs(stream_heap(0));
  auto& bins = TestAccess::free(slabs);
  const std::string cover = "slabs: the tiles of a slab do not cover it";
  const std::string names = "slabs: a stretch names another tile than its first";
  expect_each_caught({
      {"slabs: two free stretches touch", to(last.state, BlockState::free)},
      {"slabs: a free stretch has users",
       [&] {
         free.uses.get().users.push_back(TimelineId{0});
         on_undo([&] { free.uses.reset(); });
       }},
      {cover, to(first.grains, first.grains + 1)},
      {cover, to(last.grains, last.grains - 1)},
      {cover, to(cached.before, nullptr)},
      {cover, to(last.after, nullptr)},
      {names, to(slab.first[1], nullptr)},
      {names, to(slab.first.back(), &free)},
      {"slabs: the bytes in use of a slab are counted wrong", to(slab.used, slab.used + kGrain)},
      {"slabs: an empty slab is kept",
       [&] {
         for (SmallTile* tile : {&first, &cached, &last}) set(tile->state, BlockState::free);
       }},
      {"slabs: a slab is not what it was made as", to(slab.position, 1)},
      {"slabs: a bit is wrong", to(TestAccess::filled(bins)[0], ~std::uint64_t{0})},
      {"slabs: a list is linked wrong", to(free.previous, &first)},
      {"slabs: more than counted", to(free.next, &free)},
      {"slabs: a free stretch is not listed",
       [&] {
         bins.remove(&free);
         on_undo([&] { bins.add(&free); });
       }},
  });
}

TEST_F(BrokenRules, OfTimelinesAreCaught) {
  Timelines& timelines = TestAccess::timelines(heap_);
  const TimelineId a = timelines.of(a_), c = timelines.of(c_);
  auto& mine = TestAccess::all(timelines)[c.value];
  auto& by_stream = TestAccess::by_stream(timelines);
  ASSERT_GE(mine.events.size(), 2u);
  ASSERT_EQ(TestAccess::fences(mine.clock).at(0).timeline, a);
  ASSERT_GT(mine.clock.at(a).value, 0u);
  const auto fences = [](auto& clock) -> auto& { return TestAccess::fences(clock); };
  const std::string name = "timeline " + std::to_string(c.value) + ": ";
  const std::string never =
      name + "waited for an event that timeline " + std::to_string(a.value) + " never recorded";
  const std::string listed =
      "timelines: the retired streams that have an event are not those listed";
  const std::string twice = "timelines: an event is kept twice";
  expect_each_caught({
      {name + "its events do not rise",
       changed(mine.events, [](auto& events) { std::swap(events.front(), events.back()); })},
      {name + "its events do not rise",
       changed(mine.events, [](auto& events) { events[0].sequence = Sequence{0}; })},
      {name + "an event is from the future",
       changed(mine.point, [&](auto& point) { point.store({mine.latest().value}); })},
      {name + "complete beyond its last event",
       changed(mine.complete, [&](auto& complete) { complete.store(mine.point.load()); })},
      {name + "retired without its last event", changed(mine,
                                                        [](auto& timeline) {
                                                          timeline.retired = true;
                                                          timeline.events = {};
                                                        })},
      {listed, to(mine.retired, true)},
      {listed, changed(TestAccess::retired(timelines), [c](auto& all) { all.push_back(c); })},
      {never, changed(mine.clock, [&](auto& clock) { fences(clock)[0].sequence.value += 1000; })},
      {never,
       changed(mine.events,
               [&](auto& events) { fences(events.back().clock)[0].sequence.value += 1000; })},
      {name + "waited for a timeline that is not there",
       changed(mine.clock,
               [&](auto& clock) {
                 fences(clock).push_back({TimelineId{50}, Sequence{1}});
               })},
      {name + "a clock is not in order of timelines",
       changed(mine.clock, [&](auto& clock) { fences(clock).push_back(fences(clock)[0]); })},
      {name + "a clock knows of too many timelines",
       changed(mine.clock,
               [&](auto& clock) {
                 while (clock.size() <= VectorClock::kMost) {
                   fences(clock).push_back(fences(clock)[0]);
                 }
               })},
      {twice, changed(mine.events, [](auto& events) { events[0].event = events.back().event; })},
      {twice, changed(TestAccess::spare_events(timelines),
                      [&](auto& spare) { spare.push_back(mine.events.back().event); })},
      {"timelines: streams and timelines differ in number",
       changed(by_stream, [&](auto& streams) { streams.erase(c_.id); })},
      {name + "its stream has another timeline, or none",
       changed(by_stream, [&](auto& streams) { streams[c_.id].value = 0; })},
  });
}

TEST_F(BrokenRules, OfStatisticsAreCaught) {
  DeviceFold& device = TestAccess::observer(heap_).fold();
  HeapFold& heap = TestAccess::fold(stream_heap(1));
  const auto moved = [&](auto& fold, EventKind kind, EventKind back) {
    const auto tell = [&fold, stream = b_.id](EventKind what) {
      fold.on_event({.kind = what,
                     .heap = HeapId{1},
                     .stream = stream,
                     .bytes = kGrain,
                     .requested = 1_B,
                     .pool = 1});
    };
    return both([=] { tell(kind); }, [=] { tell(back); });
  };
  const auto made = moved(device, EventKind::create, EventKind::release);
  const auto mapped = moved(device, EventKind::map, EventKind::unmap);
  expect_each_caught({
      {"statistics: reserved_bytes", made},
      {"statistics: pages", made},
      {"statistics: lent_bytes", made},
      {"statistics: mappings", mapped},
      {"statistics: mapped_bytes", mapped},
      {"statistics: leased_bytes", moved(device, EventKind::lease, EventKind::unlease)},
      {"heap 1: its statistics differ from a recount of its blocks",
       moved(heap, EventKind::allocate, EventKind::deallocate)},
  });
}

}  // namespace
}  // namespace weir::test
