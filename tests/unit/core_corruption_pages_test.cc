// SPDX-License-Identifier: Apache-2.0
// Each invariant of pages and their users is broken, one at a time: validate() must name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_corruption_fixture.h"

namespace weir {
namespace {

using test::Corruption;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Corruption, APageIsLeasedExactlyWhileItIsUsed) {
  Page& used = used_page();
  expect_caught(
      used.lease, [](auto& lease) { lease.reset(); }, last_page_ + "in use, yet not leased");
  Page& idle = idle_page();
  expect_caught(
      idle.lease, [](auto& lease) { lease = HeapId{0}; }, last_page_ + "idle, yet leased");
}

TEST_F(Corruption, SizesAndNumbersOfPagesAreChecked) {
  Page& page = used_page();
  expect_caught(
      page.id, [](PageId& id) { id = PageId{9999}; }, last_page_ + "found by another's number");
  expect_caught(
      page.used, [&](Bytes& used) { used = page.size + kGrain; },
      last_page_ + "more in use than it has");
  const std::string granules = last_page_ + "not made of granules";
  expect_caught(page.size, granules);
  expect_caught(
      page.size, [](Bytes& size) { size = 0_B; }, granules);
  expect_caught(
      page.home, [](Address& home) { home = home + kGrain; }, granules);
}

TEST_F(Corruption, WhatIsFoundAtAnAddressIsItsPage) {
  Page& page = used_page();
  const std::string text = last_page_ + "a granule of another place is its";
  expect_caught(
      page.home, [](Address& home) { home = home + 2_MiB; }, text);
  Page& other = idle_page();
  GranuleMap::Entry& others = TestAccess::granule(pages(), other.home);
  expect_caught(
      others, [&](auto& granule) { granule.page = &page; }, text);
  const std::string differ = "pages: the granules are not those of the pages";
  expect_caught(
      others, [](auto& granule) { granule.page = nullptr; }, differ);
  expect_caught(
      TestAccess::granule(pages(), page.home + 1_GiB), [&](auto& granule) { granule.page = &page; },
      differ);
}

TEST_F(Corruption, SumsOfPagesAreChecked) {
  expect_caught(TestAccess::total(pages()), "pages: their sizes are summed wrong");
  expect_caught(TestAccess::leased(pages()), "pages: those in use are summed wrong");
  expect_caught(TestAccess::used(pages()), "pages: the bytes in use are summed wrong");
  Budget& budget = TestAccess::budget(heap_);
  expect_caught_until([&] { budget.take(2_MiB); }, [&] { budget.give_back(2_MiB); },
                      "budget: not what the page heaps hold");
}

TEST_F(Corruption, UsedBytesOfAPageAreThoseOfItsChunks) {
  Page& page = part_used_page();
  const std::string name = last_page_;
  Page& other = page_that([&](const Page& p) { return p.used >= 1_MiB && &p != &page; });
  // The sum agrees.
  const auto move = [&](Page& from, Page& to) {
    return [&] {
      from.used -= kGrain;
      to.used += kGrain;
    };
  };
  expect_caught_until(move(other, page), move(page, other),
                      name + "its bytes in use are counted wrong");
}

TEST_F(Corruption, BytesInUseAreThoseThatWereGivenOut) {
  Chunk& used = *chunks().at(Address::of(large_[1]));
  const Range range = used.range();
  expect_caught_until([&] { chunks().release(range, {}); }, [&] { chunks().use(range); },
                      "run at " + std::to_string(range.begin.value) +
                          ": its bytes are not in use, or not by it alone");
  Chunk& free = freed_chunk();
  const Range more{free.begin, kGrain};
  const FreedRange first = *TestAccess::first(free.freed);
  expect_caught_until([&] { chunks().use(more); }, [&] { chunks().release(more, first.use); },
                      "chunks: bytes are in use that were not given out");
}

TEST_F(Corruption, APageThatIsKeptIsKnownToBe) {
  expect_caught(
      used_page().kept, [](Page::Kept& kept) { kept = Page::Kept::yes; },
      last_page_ + "kept, yet it is said that none is");
  expect_caught(
      TestAccess::keeps_any(heap_), [](bool& keeps) { keeps = true; },
      "pages: none is kept, yet it is said that one is");
}

TEST_F(Corruption, APageIsKeptForACaptureOnlyWhileOneGoesOn) {
  expect_caught(
      used_page().kept, [](Page::Kept& kept) { kept = Page::Kept::for_now; },
      last_page_ + "kept for a capture, and none goes on");
}

TEST_F(Corruption, WhatIsHeldUnmappedIsNobodysPage) {
  auto& held = TestAccess::held(heap_);
  Bytes& held_bytes = TestAccess::held_bytes(heap_);
  expect_caught(held_bytes, "page heap: what is held unmapped is summed wrong");
  const std::string twice = "page heap: a page is held unmapped that is mapped, or held twice";
  const auto hold = [&](PhysicalHandle handle) {
    held.push_back(TestAccess::held_page(PageId{9999}, handle, 2_MiB));
    held_bytes += 2_MiB;
  };
  const auto undo = [&] {
    held.clear();
    held_bytes = 0_B;
  };
  expect_caught_until([&] { hold(used_page().handle); }, undo, twice);
  expect_caught_until(
      [&] {
        hold(PhysicalHandle{9999});
        hold(PhysicalHandle{9999});
      },
      undo, twice);
}

TEST_F(Corruption, StrayMappingsLieWhereNothingElseIs) {
  const std::string text = "page heap: a stray mapping lies where a page is mapped";
  auto& strays = TestAccess::strays(heap_);
  const StitchedRow& row = used_row();
  const auto add = [](Address at) {
    return [at](std::vector<Range>& all) { all.push_back({at, 2_MiB}); };
  };
  expect_caught(strays, add(used_page().home), text);
  expect_caught(strays, add(row.begin), text);
  expect_caught(strays, add(Address{2 << 20}), text);
  strays = {{chunk_of(Chunk::State::vacant).begin, 2_MiB}, {row.begin + row.mapped(), 2_MiB}};
  EXPECT_THAT(heap_.validate(), IsEmpty());
  strays.clear();
}

TEST_F(Corruption, UsersOfBytesAreOfThePast) {
  FreedRange& freed = *TestAccess::first(freed_chunk().freed);
  expect_caught(
      freed.use.freed_at, [](std::uint64_t& at) { at += 1000; },
      "chunks: bytes freed by a request yet to come");
}

TEST_F(Corruption, OneTimelineIsAloneOnlyWhileNobodyElseIsThere) {
  expect_caught(
      TestAccess::alone(heap_), [](bool& alone) { alone = true; },
      "somebody must be waited for, yet it is said that nobody need be");
}

TEST_F(Corruption, OneTimelineIsAloneOnlyWhereAllFreeBytesAreItsOwn) {
  DeviceHeap heap(device_);
  void* const used = allocate(heap, 4_MiB, a_);
  free(heap, allocate(heap, 2_MiB, a_));
  (void)heap.snapshot();  // gives back what is cached
  ASSERT_THAT(heap.validate(), IsEmpty());
  ASSERT_TRUE(TestAccess::alone(heap));
  Chunk* chunk = TestAccess::chunks(heap).first();
  while (chunk != nullptr && chunk->state != Chunk::State::free) chunk = chunk->after;
  ASSERT_TRUE(chunk != nullptr && !chunk->freed.empty());
  LastUse& use = TestAccess::first(chunk->freed)->use;
  const TimelineId by = std::exchange(use.by, TimelineId{use.by.value + 1});
  EXPECT_THAT(heap.validate(), Contains(HasSubstr("yet it is said that nobody need be")));
  use.by = by;
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, used);
}

TEST_F(Corruption, ThePeakIsAtLeastWhatIsUsed) {
  expect_caught(
      TestAccess::peak_used(heap_), [](Bytes& peak) { peak = kGrain; },
      "page heap: more in use than the peak");
}

TEST_F(Corruption, WhatSleepsIsCountedAgain) {
  ASSERT_TRUE(heap_.sleep({.tags = {}, .contents = SleepContents::discard}).ok());
  ASSERT_THAT(heap_.validate(), IsEmpty());
  const std::string sum = "page heap: what sleeps is summed wrong";
  expect_caught(TestAccess::absent_bytes(heap_), sum);
  expect_caught(
      TestAccess::absent_mappings(heap_), [](std::size_t& count) { ++count; }, sum);
  Page& page = used_page();
  ASSERT_EQ(page.handle, PhysicalHandle{});
  expect_caught(
      page.unmapped, [](auto& unmapped) { ++unmapped; },
      last_page_ + "lacks mappings it never had");
  expect_caught(
      page.unmapped, [](auto& unmapped) { --unmapped; }, last_page_ + "mapped without memory");
  expect_caught(
      page.unmapped, [](auto& unmapped) { --unmapped; }, sum);
  ASSERT_TRUE(heap_.wake().ok());
  expect_caught(
      used_page().handle, [](PhysicalHandle& handle) { handle = {}; },
      last_page_ + "without memory, in a page heap that is awake");
}

// A segment of plain memory is one page, and all pages are segments.
TEST(PlainCorruption, ASegmentIsAPage) {
  SimDevice device;
  const Stream stream = device.new_stream();
  DeviceHeap heap(device, {.memory = MemoryKind::plain});
  std::vector<void*> blocks;
  for (int i = 0; i < 2; ++i) blocks.push_back(heap.allocate(6_MiB, stream).value());
  ASSERT_THAT(heap.validate(), IsEmpty());
  auto& segments = TestAccess::regions(heap);
  ASSERT_EQ(segments.size(), 2u);
  const std::vector<Range> kept = segments;
  const std::string name = "segment at " + std::to_string(kept[0].begin.value);
  const std::string not_one = name + ": its addresses are not one page";
  segments[0].size = 4_MiB;
  EXPECT_THAT(heap.validate(), Contains(HasSubstr(not_one)));
  segments[0].size = 8_MiB;
  EXPECT_THAT(heap.validate(), Contains(HasSubstr(not_one)));
  segments[0] = {kept[0].begin + 2_MiB, 4_MiB};
  EXPECT_THAT(heap.validate(),
              Contains(HasSubstr("segment at " + std::to_string(segments[0].begin.value) +
                                 ": its addresses are not one page")));
  segments = kept;
  Chunk& chunk = *TestAccess::chunks(heap).at(kept[0].begin);
  chunk.begins_region = false;
  EXPECT_THAT(heap.validate(), Contains(HasSubstr(not_one)));
  chunk.begins_region = true;
  segments.pop_back();
  EXPECT_THAT(heap.validate(), Contains(HasSubstr("its pages are not its segments")));
  segments = kept;
  EXPECT_THAT(heap.validate(), IsEmpty());
  for (void* const block : blocks) EXPECT_TRUE(heap.deallocate(block).ok());
}

}  // namespace
}  // namespace weir
