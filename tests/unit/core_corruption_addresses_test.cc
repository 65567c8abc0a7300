// Each invariant of addresses and of what is mapped there is broken, one at a time: validate() must
// name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "tests/unit/core_corruption_fixture.h"

namespace weir {
namespace {

using test::Corruption;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Corruption, IndexesOfRangesAreChecked) {
  for (RangeSet* const set : {&TestAccess::usable(arena(0)), &TestAccess::vacant(arena(0))}) {
    const std::string text = "heap 0: an index of its addresses is wrong";
    ASSERT_FALSE(set->empty());
    expect_caught(
        *set, [](RangeSet& s) { TestAccess::lists(s) = {}; }, text);
    expect_caught(
        *set, [](RangeSet& s) { TestAccess::listed(s) = {}; }, text);
    expect_caught(
        *set,
        [](RangeSet& s) {
          for (const auto& table : TestAccess::tables(s)) {
            if (table != nullptr) table->filled = {};
          }
        },
        text);
    expect_caught(
        *set,
        [](RangeSet& s) {
          for (const auto& table : TestAccess::tables(s)) {
            if (table != nullptr) table->first = {};
          }
        },
        text);
    expect_caught(
        *set, [](RangeSet& s) { TestAccess::resize_first(s, s.begin()->size + 64_MiB); }, text);
    expect_caught(
        *set,
        [](RangeSet& s) {  // two members that touch
          const auto [at, size] = *s.begin();
          s.erase({at + kGrain, size - kGrain});
          TestAccess::add(s, {at + kGrain, size - kGrain});
        },
        text);
  }
}

TEST_F(Corruption, UsableAddressesAreThoseThatThePagesSay) {
  RangeSet& usable = TestAccess::usable(arena(0));
  const std::string text = "heap 0: its usable addresses differ from what its pages say";
  const auto [at, size] = *usable.begin();
  expect_caught(
      usable,
      [&, at = at](RangeSet& s) {
        s.erase({at, kGrain});
      },
      text);
  expect_caught(
      usable,
      [&](RangeSet& s) {
        s.insert({Address::of(large_[1]), kGrain});
      },
      text);
}

TEST_F(Corruption, UsableAddressesAreMappedAndTheHeapsOwn) {
  Address nowhere;  // behind all
  for (const Range vacant : arena(0).vacant()) nowhere = vacant.begin + 64_MiB;
  expect_caught(
      TestAccess::usable(arena(0)),
      [&](RangeSet& s) {
        s.insert({nowhere, kGrain});
      },
      "heap 0: usable, but not mapped");
  const Address theirs = Address::of(idle_);
  expect_caught(
      TestAccess::usable(arena(0)),
      [&](RangeSet& s) {
        s.insert({theirs, kGrain});
      },
      "heap 0: usable addresses not its own");
}

TEST_F(Corruption, VacantAddressesAreReservedAndNotMapped) {
  RangeSet& vacant = TestAccess::vacant(arena(0));
  expect_caught(
      vacant,
      [&](RangeSet& s) {
        s.insert({Address::of(large_[1]), 512_B});
      },
      "heap 0: vacant, but mapped");
  expect_caught(
      vacant,
      [&](RangeSet& s) {
        s.insert({Address{(1_MiB).count}, 512_B});
      },
      "heap 0: vacant, but not reserved");
}

TEST_F(Corruption, TheCurrentRowOfAnArenaIsNumbered) {
  const std::string text = "its current row has no number";
  expect_caught(
      TestAccess::rows(heap_), [](auto& rows) { rows[0].reset(); }, text);
  expect_caught(
      TestAccess::next_row(heap_), [](auto& next) { next = 0; }, text);
  expect_caught(
      TestAccess::frontier(arena(0)), [](Address& at) { at = Address{}; }, text);
}

TEST_F(Corruption, RowsDoNotTouch) {
  const std::vector<PageMapping> mappings = table().list_mappings();
  const auto touching = std::adjacent_find(mappings.begin(), mappings.end(),
                                           [&](const PageMapping& a, const PageMapping& b) {
                                             return a.at + table().page(a.page).size == b.at;
                                           });
  ASSERT_NE(touching, mappings.end());
  expect_caught(
      listed(*touching), [](Mapping& mapping) { mapping.row.value += 100; },
      "page table: two rows touch");
  expect_caught(
      listed(*touching), [](Mapping& mapping) { mapping.row.value += 100; },
      "heap 0: a row that is yet to be begun");
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

TEST_F(Corruption, ThePagesMappingsAreWhatIsMapped) {
  Page& page = leased_page();
  const std::string name = last_page_;
  ASSERT_FALSE(page.mappings.empty());
  expect_caught(
      page.mappings, [](auto& mappings) { mappings.pop_back(); },
      "page table: an address is mapped that no page lists");
  expect_caught(
      page.mappings, [](auto& mappings) { mappings.push_back(mappings.back()); },
      name + "lists a mapping twice");
  expect_caught(
      page.mappings, [](auto& mappings) { mappings.push_back(mappings.back()); },
      "page table: two mappings overlap");
  expect_caught(
      page.home, [](Address& home) { home = home + kGrain; },
      name + "its home is not its first mapping");
  Page& other = page_that([](const Page& p) { return p.lease == HeapId{1}; });
  expect_caught(
      page.mappings, [&](auto& mappings) { mappings.push_back(other.mappings[0]); },
      name + "lists a mapping that is not its own");
  Mapping& mine = page.mappings.front();
  expect_caught(
      mine, [](Mapping& m) { m.heap = HeapId{1}; }, "heap 1: mapped, but not reserved");
  expect_caught(
      mine, [](Mapping& m) { m.heap = HeapId{99}; }, "a mapping of a heap that is not there");
  expect_caught(
      mine, [](Mapping& m) { m.at = m.at + 1_GiB; }, name + "lists a mapping that is not there");
  expect_caught(
      mine, [](Mapping& m) { m.at = m.at + kGrain; },
      "page table: a mapping is not where it can be");
  std::size_t& number = TestAccess::mappings(table());
  expect_caught(
      number, [](auto& n) { ++n; }, "page table: the number of mappings is wrong");
}

TEST_F(Corruption, WhatIsGivenOutAtAMappingIsCounted) {
  Page& page = page_that([](const Page& p) { return p.used > 0_B && p.mappings.size() > 1; });
  const std::string name = last_page_;
  for (Mapping& mine : page.mappings) {
    expect_caught(
        mine, [](Mapping& m) { ++m.used_grains; },
        name + "a mapping's bytes in use are counted wrong");
    expect_caught(
        mine, [&](Mapping& m) { m.used_at = table().uses() + 1; },
        name + "a mapping was used by a run yet to come");
  }
}

TEST_F(Corruption, NothingIsGivenOutAtARetiredMappingWhichIsGoingToBeUnmapped) {
  const auto is_used = [](const Mapping& mapping) { return mapping.used_grains > 0; };
  Page& page = page_that([&](const Page& p) {
    return p.used > 0_B && p.used < p.size && p.mappings.size() > 1 &&
           !std::all_of(p.mappings.begin(), p.mappings.end(), is_used);
  });
  const std::string name = last_page_;
  const auto retire = [](Mapping& mapping) {
    mapping.gives = Mapping::Gives::nothing;
    mapping.told = 0;
  };
  Mapping& unused = *std::find_if_not(page.mappings.begin(), page.mappings.end(), is_used);
  ASSERT_EQ(unused.heap, page.lease);
  const std::string usable = "heap " + std::to_string(unused.heap.value) +
                             ": its usable addresses differ from what its pages say";
  expect_caught(unused, retire, name + "a mapping is retired, and nobody is going to unmap it");
  expect_caught(unused, retire, usable);
  Mapping& used = *std::find_if(page.mappings.begin(), page.mappings.end(), is_used);
  expect_caught(used, retire, name + "a retired mapping is in use");
  // And one that is going to be.
  table().retire(unused.at);
  TestAccess::aliases_retired(heap_) = {unused.at};
  EXPECT_THAT(heap_.validate(), IsEmpty());
  expect_caught(
      unused, [](Mapping& mapping) { mapping.told = 1; }, usable);
}

TEST_F(Corruption, WhatTheListenerHoldsUsableIsSoOrIsListedToBeTold) {
  Page& page = page_that([&](const Page& p) { return p.used > 0_B && p.used < p.size; });
  const std::string name = last_page_;
  Mapping& mine = page.mappings.front();
  ASSERT_EQ(mine.heap, page.lease);
  ASSERT_TRUE(mine.offered());
  expect_caught(
      mine, [](Mapping& m) { m.told = 0; }, name + "nobody is going to tell of a change");
  expect_caught(
      mine, [](Mapping& m) { m.gives = Mapping::Gives::known; },
      name + "a mapping is told of that is not offered");
  expect_caught(
      mine, [](Mapping& m) { m.listed = !m.listed; },
      name + "a mapping is not on the list it names");
}

TEST_F(Corruption, WhatIsFoundAtAnAddressIsItsPage) {
  Page& page = leased_page();
  const std::string name = last_page_;
  const Address at = page.mappings.front().at;
  GranuleMap::Entry& granule = TestAccess::granule(table(), at);
  const std::string text = name + "another page, or part of it, is found where it is mapped";
  Page& other = idle_page();
  expect_caught(
      granule, [&](auto& g) { g.page = &other; }, text);
  expect_caught(
      granule, [](auto& g) { g.offset += 2_MiB; }, text);
  expect_caught(
      granule, [](auto& g) { g.page = nullptr; }, name + "lists a mapping that is not there");
  expect_caught(
      TestAccess::granule(table(), at + 1_GiB),
      [&](auto& g) {
        g = {&page, 0_B};
      },
      "page table: an address is mapped that no page lists");
}

TEST_F(Corruption, ARunOfUsableAddressesHasNoPageTwice) {
  const std::vector<PageMapping> mappings = table().list_mappings();
  const auto runs_on = [&](const PageMapping& a, const PageMapping& b) {
    const Bytes size = table().page(a.page).size;
    return a.at + size == b.at && arena(0).usable().contains({a.at, size + kGrain});
  };
  const auto first = std::adjacent_find(mappings.begin(), mappings.end(), runs_on);
  ASSERT_NE(first, mappings.end());
  Page& page = TestAccess::pages(table()).at(first->page.value);
  expect_caught(
      TestAccess::granule(table(), std::next(first)->at), [&](auto& g) { g.page = &page; },
      "heap 0: a run has a page twice");
}

}  // namespace
}  // namespace weir
