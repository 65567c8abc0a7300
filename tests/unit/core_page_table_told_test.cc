// PageTable: at which of its aliases a page's free bytes are offered, and when the listener learns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/page_table.h"
#include "core_page_table_fixture.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PageTableTold : public PageTableTest {
 protected:
  static constexpr int kMore = 2;

  // More than are offered.
  std::vector<Address> map_often(PageId id, HeapId heap) {
    std::vector<Address> all;
    for (int i = 0; i < PageTable::kMostOffered + kMore; ++i) {
      all.push_back(map(id, heap, RowId{next_row_++}));
      use_at(all.back(), heap);  // so that they were used one after the other
      free_at(all.back(), heap);
    }
    return all;
  }
  void use_at(Address at, HeapId heap) {
    table_.use(Range{at, 512_KiB}, heap, [](const Page&, Bytes, Bytes, bool) {});
  }
  void free_at(Address at, HeapId heap) {
    table_.free(Range{at, 512_KiB}, heap, [](const Page&, Bytes, Bytes, bool) {});
  }
  bool is_offered(Address at, HeapId heap) { return usable(heap).contains({at, 512_KiB}); }

  std::uint32_t next_row_ = 0;
};

TEST_F(PageTableTold, TheFirstAndTheLastUsedOfManyAliasesAreOffered) {
  const std::vector<Address> all = map_often(page(), kA);
  EXPECT_EQ(usable(kA).count(), std::size_t{PageTable::kMostOffered});
  EXPECT_TRUE(is_offered(all.front(), kA));
  EXPECT_FALSE(is_offered(all[1], kA));
  EXPECT_FALSE(is_offered(all[2], kA));
  for (std::size_t i = 3; i < all.size(); ++i) EXPECT_TRUE(is_offered(all[i], kA)) << i;
}

TEST_F(PageTableTold, WhatIsNotOfferedMayStillBeUsedAndIsOfferedAgain) {
  const std::vector<Address> all = map_often(page(), kA);
  const Range run{all[1], 512_KiB};
  EXPECT_TRUE(table_.is_usable(run, kA));
  use_at(all[1], kA);
  EXPECT_FALSE(table_.is_usable(run, kA));
  EXPECT_THAT(validate(), IsEmpty());
  // In the place of the one that was not used for longest.
  EXPECT_TRUE(usable(kA).contains({all[1] + 512_KiB, 1536_KiB}));
  EXPECT_FALSE(usable(kA).overlaps({all[3], 2_MiB}));
  EXPECT_EQ(usable(kA).count(), std::size_t{PageTable::kMostOffered});
  free_at(all[1], kA);
  EXPECT_TRUE(is_offered(all[1], kA));
}

TEST_F(PageTableTold, AnAliasWithBytesInUseStaysOffered) {
  const PageId id = page(4_MiB);
  std::vector<Address> all;
  for (int i = 0; i < PageTable::kMostOffered + kMore; ++i) {
    all.push_back(map(id, kA, RowId{next_row_++}));
    use_at(all.back() + 512_KiB * static_cast<std::uint64_t>(i), kA);
  }
  const std::uint64_t used = all.size();
  for (const Address at : all) {
    EXPECT_TRUE(usable(kA).contains({at + 512_KiB * used, 4_MiB - 512_KiB * used}));
  }
}

TEST_F(PageTableTold, EachHeapIsOfferedItsOwn) {
  const PageId id = page();
  map_often(id, kA);
  map_often(id, kB);
  EXPECT_EQ(usable(kA).count(), std::size_t{PageTable::kMostOffered});
  EXPECT_EQ(usable(kB).count(), std::size_t{PageTable::kMostOffered});
}

TEST_F(PageTableTold, PagesThatCameAndWentBetweenTwoLooksCostTheOtherHeapNothing) {
  const PageId id = page();
  const Address a = map(id, kA), b = map(id, kB);
  EXPECT_THAT(usable(kB), ElementsAre(Range{b, 2_MiB}));
  const int own = [&] {
    const int before = told_.calls;
    use_at(a, kA);
    free_at(a, kA);
    return told_.calls - before;
  }();
  EXPECT_EQ(own, 2);  // of its own addresses
  const int before = told_.calls;
  EXPECT_THAT(usable(kB), ElementsAre(Range{b, 2_MiB}));
  EXPECT_EQ(told_.calls, before);

  use_at(a, kA);
  EXPECT_TRUE(told_.of(kB).contains({b, 2_MiB})) << "not told yet";
  EXPECT_THAT(validate(), IsEmpty());
  EXPECT_FALSE(table_.is_usable({b, 512_KiB}, kB));
  EXPECT_TRUE(usable(kB).empty());
  free_at(a, kA);
  EXPECT_TRUE(told_.of(kB).empty()) << "not told yet";
  EXPECT_TRUE(table_.is_usable({b, 512_KiB}, kB));
  // What it knows of an address where it was before needs no look.
  use_at(b, kB);
  EXPECT_THAT(told_.of(kB), ElementsAre(Range{b + 512_KiB, 1536_KiB}));
  EXPECT_TRUE(usable(kA).empty());
}

TEST_F(PageTableTold, AMappingThatIsGoneOrRetiredIsPassedOver) {
  const PageId id = page(), other = page();
  const Address a = map(id, kA), b = map(id, kB), c = map(other, kA), d = map(other, kB);
  use_at(a, kA);
  use_at(c, kA);
  table_.retire(d);
  free_at(a, kA);
  table_.remove_mapping(b);
  EXPECT_TRUE(usable(kB).empty());
  table_.restore(d);
  EXPECT_TRUE(usable(kB).empty());
  free_at(c, kA);
  EXPECT_THAT(usable(kB), ElementsAre(Range{d, 2_MiB}));
}

TEST_F(PageTableTold, OnlyAHeapsOwnFreeMappedAddressesAreUsable) {
  const PageId first = page(), second = page(4_MiB);
  table_.add_mapping(first, kA, kFirst, RowId{0});
  table_.add_mapping(second, kA, kFirst + 2_MiB, RowId{0});
  EXPECT_TRUE(table_.is_usable({kFirst, 6_MiB}, kA));
  EXPECT_FALSE(table_.is_usable({kFirst, 6_MiB + 512_B}, kA));
  EXPECT_FALSE(table_.is_usable({kFirst - 512_B, 1_MiB}, kA));
  EXPECT_FALSE(table_.is_usable({kFirst, 512_B}, kB));
  table_.use(second, 1_MiB, 1_MiB, kA);
  EXPECT_TRUE(table_.is_usable({kFirst, 3_MiB}, kA));
  EXPECT_FALSE(table_.is_usable({kFirst, 3_MiB + 512_B}, kA));
  EXPECT_FALSE(table_.is_usable({kFirst + 3_MiB, 512_B}, kA));
  EXPECT_FALSE(table_.is_usable({kFirst + 4_MiB - 512_B, 1024_B}, kA));
  EXPECT_TRUE(table_.is_usable({kFirst + 4_MiB, 2_MiB}, kA));
  table_.retire(kFirst);
  EXPECT_FALSE(table_.is_usable({kFirst, 512_B}, kA));
  table_.restore(kFirst);
  EXPECT_TRUE(table_.is_usable({kFirst, 512_B}, kA));
}

}  // namespace
}  // namespace weir
