// Each invariant of addresses and pages is broken, one at a time: validate() must name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
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
        *set, [](RangeSet& s) { TestAccess::by_size(s).clear(); }, text);
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
  const Address nowhere = arena(0).vacant().members().rbegin()->first + 64_MiB;
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
      TestAccess::rows(heap_), [](auto& rows) { rows.erase(HeapId{0}); }, text);
  expect_caught(
      TestAccess::next_row(heap_), [](auto& next) { next = 0; }, text);
  expect_caught(
      TestAccess::frontier(arena(0)), [](Address& at) { at = Address{}; }, text);
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
      [&](auto& m) {
        m[at + 512_B] = {at + 512_B, m[at].page, m[at].heap, m[at].row};
      },
      "page table: two mappings overlap");
}

TEST_F(Corruption, ARunOfUsableAddressesHasNoPageTwice) {
  auto& mappings = TestAccess::mappings(table());
  const auto runs_on = [&](const auto& a, const auto& b) {
    const Bytes size = table().page(a.second.page).size;
    return a.first + size == b.first && arena(0).usable().contains({a.first, size + kGrain});
  };
  const auto first = std::adjacent_find(mappings.begin(), mappings.end(), runs_on);
  ASSERT_NE(first, mappings.end());
  const auto second = std::next(first);
  expect_caught(
      second->second, [&](Mapping& m) { m.page = first->second.page; },
      "heap 0: a run has a page twice");
}

TEST_F(Corruption, IndexesOfPagesAreChecked) {
  const Bytes size = idle_page().size;
  auto& idle = TestAccess::idle(table());
  const std::string text = "page table: the index of idle pages is wrong";
  expect_caught(
      idle,
      [&](auto& index) {
        index.erase({size, last_id_});
      },
      text);
  expect_caught(
      idle, [&](auto& index) { index.emplace(size + 2_MiB, last_id_); }, text);
  (void)leased_page();
  expect_caught(
      idle, [&](auto& index) { index.emplace(2_MiB, last_id_); }, text);

  const std::string ends = "page table: the index of heap 0's free page ends is wrong";
  auto& tails = TestAccess::tails(table(), HeapId{0});
  auto& heads = TestAccess::heads(table(), HeapId{0});
  for (auto* const index : {&tails, &heads}) {
    ASSERT_FALSE(index->empty());
    expect_caught(
        *index, [](auto& i) { i.erase(i.begin()); }, ends);
    expect_caught(
        *index, [](auto& i) { i.emplace(77_B, PageId{9999}); }, ends);
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

}  // namespace
}  // namespace weir
