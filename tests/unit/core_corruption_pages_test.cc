// Each invariant of pages and their users is broken, one at a time: validate() must name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/core_corruption_fixture.h"

namespace weir {
namespace {

using test::Corruption;
using testing::Contains;
using testing::IsEmpty;

TEST_F(Corruption, UsedRangesOfAPageAreSortedApartAndWithinIt) {
  Page& page = part_used_page();
  auto& edges = page.edges;
  const std::string overlap = last_page_ + "its used ranges overlap or touch";
  ASSERT_GE(edges.size(), 2u);
  const Bytes begin = edges[0], end = edges[1];
  ASSERT_GT(end - begin, kGrain * 2);
  expect_caught(
      edges,
      [&](auto& e) {
        e.insert(e.begin() + 2, {begin + kGrain, end + kGrain});
      },
      overlap);
  expect_caught(
      edges,
      [&](auto& e) {
        e.insert(e.begin() + 1, {begin + kGrain, begin + kGrain});
      },
      overlap);
  expect_caught(
      edges,
      [&page](auto& e) {
        e.insert(e.end(), {page.size + kGrain, page.size + kGrain * 2});
      },
      last_page_ + "a used range ends behind the page");
  expect_caught(
      edges, [](auto& e) { e[1] += kGrain; },
      last_page_ + "its used bytes differ from its used ranges");
  expect_caught(
      edges, [](auto& e) { e.pop_back(); }, last_page_ + "a used range has no end");
}

TEST_F(Corruption, UsedBytesOfAPageAreThoseGivenOut) {
  Page& page = part_used_page();
  // Count and ranges agree, yet nobody has these bytes.
  const std::vector<Bytes> kept = page.edges;
  page.edges.back() -= kGrain;
  page.used -= kGrain;
  TestAccess::used(table()) -= kGrain;
  EXPECT_THAT(heap_.validate(),
              Contains(last_page_ + "its bytes in use are not those that were given out"));
  page.edges = kept;
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
      page.id, [](PageId& id) { id = PageId{9999}; },
      last_page_ + "is listed under another number");
  Page& other = idle_page();
  expect_caught(
      page.slot, [&](auto& slot) { slot = other.slot; }, "its slot is not its own");
  expect_caught(
      page.slot, [](auto& slot) { slot = 9999; }, "its slot is not its own");
  expect_caught(
      TestAccess::slots(table()), [](auto& slots) { ++slots; }, "page table: slots of no page");
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
  const auto use = [&]() -> auto& { return uses[table().page(last_id_).slot]; };
  expect_caught(
      use(), [](auto& u) { u.page.reset(); }, leased + "nothing is known of its users");
  expect_caught(
      uses, [](auto& u) { u.emplace_back().page = PageId{9999}; },
      "page heap: pages and their users differ in number");
  expect_caught(
      use(), [](auto& u) { u.donor.emplace(); }, leased + "leased, yet it has a donor");
  (void)idle_page();
  expect_caught(
      use(), [](auto& u) { u.donor.reset(); }, last_page_ + "idle after use, yet it has no donor");
  expect_caught(
      use(), [](auto& u) { u.freed_at += 1000; }, last_page_ + "freed by a request yet to come");
}

TEST_F(Corruption, OneTimelineIsAloneOnlyWhileNobodyElseIsThere) {
  expect_caught(
      TestAccess::alone(heap_), [](bool& alone) { alone = true; },
      "somebody must be waited for, yet it is said that nobody need be");
}

TEST_F(Corruption, ThePeakIsAtLeastWhatIsUsed) {
  expect_caught(
      TestAccess::peak_used(heap_), [](Bytes& peak) { peak = kGrain; },
      "page heap: more in use than the peak");
}

}  // namespace
}  // namespace weir
