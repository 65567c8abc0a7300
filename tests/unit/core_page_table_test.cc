// PageTable: which bytes of a page are in use, who holds its lease, and what its aliases show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/page_table.h"
#include "core_page_table_fixture.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST_F(PageTableTest, ANewPageIsIdleAndUnmapped) {
  const PageId id = page(4_MiB);
  EXPECT_THAT(table_.idle(), ElementsAre(Pair(4_MiB, id)));
  EXPECT_EQ(table_.total(), 4_MiB);
  EXPECT_EQ(table_.leased(), 0_B);
  EXPECT_EQ(table_.page(id).tail(), 4_MiB);
  EXPECT_EQ(table_.page(id).head(), 4_MiB);
}

TEST_F(PageTableTest, TheFirstUseTakesTheLeaseAndHidesThePageFromOtherHeaps) {
  const PageId id = page();
  const Address a = map(id, kA), b = map(id, kB);
  EXPECT_TRUE(usable(kB).contains({b, 2_MiB}));

  table_.use(id, 0_B, 1_MiB, kA);
  EXPECT_EQ(table_.page(id).lease, kA);
  EXPECT_EQ(table_.leased(), 2_MiB);
  EXPECT_EQ(table_.used(), 1_MiB);
  EXPECT_TRUE(usable(kB).empty());
  EXPECT_THAT(usable(kA), ElementsAre(Range{a + 1_MiB, 1_MiB}));
  EXPECT_THAT(table_.idle(), IsEmpty());
}

TEST_F(PageTableTest, TheLastFreeEndsTheLeaseAndShowsThePageToAll) {
  const PageId id = page();
  const Address a = map(id, kA), b = map(id, kB);
  table_.use(id, 0_B, 1_MiB, kA);
  table_.use(id, 1_MiB, 512_KiB, kA);
  table_.free(id, 0_B, 1_MiB);
  EXPECT_EQ(table_.page(id).lease, kA);
  table_.free(id, 1_MiB, 512_KiB);
  EXPECT_EQ(table_.page(id).lease, std::nullopt);
  EXPECT_TRUE(usable(kA).contains({a, 2_MiB}));
  EXPECT_TRUE(usable(kB).contains({b, 2_MiB}));
  table_.use(id, 0_B, 2_MiB, kB);
  EXPECT_EQ(table_.page(id).lease, kB);
  EXPECT_TRUE(usable(kA).empty());
}

TEST_F(PageTableTest, BytesUsedThroughOneAddressAreGoneFromEveryAliasOfTheHeap) {
  const PageId id = page();
  const Address first = map(id, kA, RowId{0}), second = map(id, kA, RowId{1});
  table_.use(id, 512_KiB, 512_KiB, kA);
  for (const Address at : {first, second}) {
    EXPECT_TRUE(usable(kA).contains({at, 512_KiB}));
    EXPECT_EQ(usable(kA).containing(at + 512_KiB), std::nullopt);
    EXPECT_TRUE(usable(kA).contains({at + 1_MiB, 1_MiB}));
  }
}

TEST_F(PageTableTest, AnAliasOfALeasedPageShowsItsFreeBytesToTheHolderOnly) {
  const PageId id = page();
  table_.use(id, 0_B, 1_MiB, kA);
  const Address a = map(id, kA);
  map(id, kB);
  EXPECT_THAT(usable(kA), ElementsAre(Range{a + 1_MiB, 1_MiB}));
  EXPECT_TRUE(usable(kB).empty());
}

TEST_F(PageTableTest, EndsOfPagesInUseAreFoundBySize) {
  const PageId wide = page(4_MiB), narrow = page(2_MiB), full = page(2_MiB);
  table_.use(wide, 1_MiB, 512_KiB, kA);
  table_.use(narrow, 0_B, 512_KiB, kA);
  table_.use(full, 0_B, 2_MiB, kA);
  EXPECT_THAT(table_.tails(kA), ElementsAre(Pair(1536_KiB, narrow), Pair(2560_KiB, wide)));
  EXPECT_THAT(table_.heads(kA), ElementsAre(Pair(1_MiB, wide)));
  EXPECT_THAT(table_.tails(kB), IsEmpty());
  EXPECT_THAT(table_.heads(HeapId{77}), IsEmpty());
  table_.free(narrow, 0_B, 512_KiB);
  EXPECT_THAT(table_.tails(kA), ElementsAre(Pair(2560_KiB, wide)));
}

TEST_F(PageTableTest, UsedStretchesThatTouchAreOne) {
  const PageId id = page();
  table_.use(id, 0_B, 512_B, kA);
  table_.use(id, 1024_B, 512_B, kA);
  EXPECT_EQ(table_.page(id).used_ranges().size(), 2u);
  table_.use(id, 512_B, 512_B, kA);
  EXPECT_THAT(table_.page(id).used_ranges(), ElementsAre(Pair(0_B, 1536_B)));
  table_.free(id, 512_B, 512_B);
  EXPECT_EQ(table_.page(id).used_ranges().size(), 2u);
}

TEST_F(PageTableTest, ARemovedMappingIsUsableNoMore) {
  const PageId id = page();
  const Address first = map(id, kA, RowId{3}), second = map(id, kB, RowId{4});
  EXPECT_TRUE(table_.row_has(RowId{3}, id));
  table_.remove_mapping(first);
  EXPECT_FALSE(table_.row_has(RowId{3}, id));
  EXPECT_TRUE(table_.row_has(RowId{4}, id));
  EXPECT_TRUE(usable(kA).empty());
  ASSERT_EQ(table_.page(id).mappings.size(), 1u);
  EXPECT_EQ(table_.page(id).mappings[0].at, second);
  table_.remove_mapping(second);
  table_.remove(id);
  EXPECT_EQ(table_.total(), 0_B);
  EXPECT_THAT(table_.pages(), IsEmpty());
  EXPECT_NE(page(), id);  // numbers are never used again
}

TEST_F(PageTableTest, WalksARangeAcrossTheMappingsOfARow) {
  const PageId first = page(2_MiB), second = page(4_MiB), third = page(2_MiB);
  table_.add_mapping(first, kA, kFirst, RowId{0});
  table_.add_mapping(second, kA, kFirst + 2_MiB, RowId{0});
  table_.add_mapping(third, kA, kFirst + 6_MiB, RowId{0});
  std::vector<std::pair<PageId, std::pair<Bytes, Bytes>>> parts;
  table_.walk({kFirst + 1_MiB, 6_MiB}, [&](const Page& page, Bytes offset, Bytes size) {
    parts.push_back({page.id, {offset, size}});
  });
  EXPECT_THAT(parts, ElementsAre(Pair(first, Pair(1_MiB, 1_MiB)), Pair(second, Pair(0_B, 4_MiB)),
                                 Pair(third, Pair(0_B, 1_MiB))));
}

TEST_F(PageTableTest, ARunIsUsedAndFreedWithAllItsPagesAndTheirAliases) {
  const PageId first = page(2_MiB), second = page(4_MiB);
  table_.add_mapping(first, kA, kFirst, RowId{0});
  table_.add_mapping(second, kA, kFirst + 2_MiB, RowId{0});
  next_ = kFirst + 64_MiB;
  const Address alias = map(second, kA, RowId{1}), theirs = map(first, kB, RowId{2});
  table_.use(first, 0_B, 512_KiB, kA);
  std::vector<std::pair<PageId, bool>> parts;
  const auto note = [&](const Page& page, Bytes, Bytes, bool changed) {
    parts.push_back({page.id, changed});
  };
  const Range run{kFirst + 1_MiB, 2_MiB};
  table_.use(run, kA, note);
  EXPECT_THAT(parts, ElementsAre(Pair(first, false), Pair(second, true)));
  EXPECT_EQ(table_.used(), 2560_KiB);
  EXPECT_THAT(usable(kA), ElementsAre(Range{kFirst + 512_KiB, 512_KiB},
                                      Range{kFirst + 3_MiB, 3_MiB}, Range{alias + 1_MiB, 3_MiB}));
  EXPECT_THAT(validate(), IsEmpty());

  parts.clear();
  table_.free(first, 0_B, 512_KiB);
  EXPECT_TRUE(usable(kB).empty());
  table_.free(run, kA, note);
  EXPECT_THAT(parts, ElementsAre(Pair(first, true), Pair(second, true)));
  EXPECT_THAT(usable(kA), ElementsAre(Range{kFirst, 6_MiB}, Range{alias, 4_MiB}));
  EXPECT_THAT(usable(kB), ElementsAre(Range{theirs, 2_MiB}));
}

TEST_F(PageTableTest, ASlotServesAnotherPageOnceItsOwnIsGone) {
  const PageId first = page(), second = page();
  EXPECT_EQ(table_.page(first).slot, 0u);
  EXPECT_EQ(table_.page(second).slot, 1u);
  table_.remove(first);
  const PageId third = page();
  EXPECT_EQ(table_.page(third).slot, 0u);
  EXPECT_EQ(table_.slots(), 2u);
  EXPECT_EQ(third, PageId{2});
}

TEST_F(PageTableTest, SaysWhatIsMapped) {
  const Address at = map(page(4_MiB), kA);
  EXPECT_TRUE(table_.is_mapped({at, 4_MiB}));
  EXPECT_TRUE(table_.is_mapped({at + 1_MiB, 3_MiB}));
  EXPECT_FALSE(table_.is_mapped({at, 4_MiB + 512_B}));
  EXPECT_FALSE(table_.is_mapped({at - 512_B, 1_MiB}));
  EXPECT_FALSE(table_.is_mapped({Address{~std::uint64_t{0} - 4095}, 512_B}));
  EXPECT_FALSE(table_.is_mapped({Address{(1_TiB).count}, 512_B}));
}

// The same table, with one flag for each cell of a page.
class Oracle {
 public:
  static constexpr Bytes kCell = 256_KiB;
  struct OraclePage {
    Bytes size;
    std::vector<bool> used;
    std::optional<HeapId> lease;
    std::map<Address, HeapId> mappings;

    bool idle() const { return std::find(used.begin(), used.end(), true) == used.end(); }
    Bytes tail() const {
      std::uint64_t free = 0;
      while (free < used.size() && !used[used.size() - 1 - free]) ++free;
      return kCell * free;
    }
    Bytes head() const {
      std::uint64_t free = 0;
      while (free < used.size() && !used[free]) ++free;
      return kCell * free;
    }
  };

  RangeSet usable(HeapId heap, const PageTable& table) const {
    RangeSet set;
    for (const auto& [id, page] : pages) {
      if (page.lease && page.lease != heap) continue;
      for (const auto& [at, owner] : page.mappings) {
        if (owner != heap || !table.mapping(at).offered()) continue;
        for (std::uint64_t i = 0; i < page.used.size(); ++i) {
          if (!page.used[i]) set.insert({at + kCell * i, kCell});
        }
      }
    }
    return set;
  }
  PageTable::BySize sizes(std::optional<HeapId> lease, Bytes (*size)(const OraclePage&)) const {
    PageTable::BySize sizes;
    for (const auto& [id, page] : pages) {
      if (page.lease == lease && size(page) > 0_B) sizes.emplace(size(page), id);
    }
    return sizes;
  }

  std::map<PageId, OraclePage> pages;
};

class PageTableProgram : public PageTableTest, public testing::WithParamInterface<std::uint64_t> {
 protected:
  Oracle::OraclePage& any_page(PageId& id) {
    const auto it =
        std::next(oracle_.pages.begin(), static_cast<long>(random_() % oracle_.pages.size()));
    id = it->first;
    return it->second;
  }
  void create() {
    const Bytes size = 2_MiB * (1 + random_() % 3);
    const PageId id = page(size);
    oracle_.pages[id] = {size, std::vector<bool>(size / Oracle::kCell), {}, {}};
  }
  void alias() {
    PageId id;
    Oracle::OraclePage& mine = any_page(id);
    const HeapId heap{static_cast<std::uint32_t>(random_() % 3)};
    mine.mappings[map(id, heap, RowId{rows_++})] = heap;
  }
  // Flips a stretch of cells that are all alike.
  void use_or_free() {
    PageId id;
    Oracle::OraclePage& mine = any_page(id);
    const std::uint64_t first = random_() % mine.used.size();
    std::uint64_t end = first + 1;
    while (end < mine.used.size() && mine.used[end] == mine.used[first] && random_() % 3 != 0)
      ++end;
    const Bytes offset = Oracle::kCell * first, size = Oracle::kCell * (end - first);
    const bool use = !mine.used[first];
    const HeapId heap = mine.lease.value_or(HeapId{static_cast<std::uint32_t>(random_() % 3)});
    // Through an address of the heap's, where it has one.
    const auto through = std::find_if(mine.mappings.begin(), mine.mappings.end(),
                                      [&](const auto& m) { return m.second == heap; });
    const auto ignore = [](const Page&, Bytes, Bytes, bool) {};
    if (through != mine.mappings.end() && random_() % 2 == 0) {
      const Range run{through->first + offset, size};
      if (use) {
        table_.use(run, heap, ignore);
      } else {
        table_.free(run, heap, ignore);
      }
    } else if (use) {
      table_.use(id, offset, size, heap);
    } else {
      table_.free(id, offset, size);
    }
    for (std::uint64_t i = first; i < end; ++i) mine.used[i] = use;
    mine.lease = mine.idle() ? std::nullopt : std::optional<HeapId>(heap);
  }
  void take_away() {
    PageId id;
    Oracle::OraclePage& mine = any_page(id);
    if (!mine.idle()) return;
    if (!mine.mappings.empty()) {
      table_.remove_mapping(mine.mappings.begin()->first);
      mine.mappings.erase(mine.mappings.begin());
      return;
    }
    table_.remove(id);
    oracle_.pages.erase(id);
  }
  void check() {
    const auto whole = [](const Oracle::OraclePage& page) { return page.size; };
    const auto tail = [](const Oracle::OraclePage& page) { return page.tail(); };
    const auto head = [](const Oracle::OraclePage& page) { return page.head(); };
    ASSERT_EQ(table_.idle(), oracle_.sizes(std::nullopt, whole));
    for (std::uint32_t i = 0; i < 3; ++i) {
      const HeapId heap{i};
      ASSERT_EQ(usable(heap), oracle_.usable(heap, table_));
      ASSERT_EQ(table_.tails(heap), oracle_.sizes(heap, tail));
      ASSERT_EQ(table_.heads(heap), oracle_.sizes(heap, head));
    }
    Bytes total, leased, used;
    for (const auto& [id, page] : oracle_.pages) {
      total += page.size;
      if (page.lease) leased += page.size;
      used += Oracle::kCell *
              static_cast<std::uint64_t>(std::count(page.used.begin(), page.used.end(), true));
      ASSERT_EQ(table_.page(id).lease, page.lease);
    }
    ASSERT_EQ(table_.total(), total);
    ASSERT_EQ(table_.leased(), leased);
    ASSERT_EQ(table_.used(), used);
    ASSERT_THAT(validate(), IsEmpty());
  }

  std::mt19937_64 random_{GetParam()};
  Oracle oracle_;
  std::uint32_t rows_ = 0;
};

TEST_P(PageTableProgram, AgreesWithOneFlagForEachCell) {
  for (int step = 0; step < 500; ++step) {
    const std::uint64_t kind = random_() % 16;
    if (oracle_.pages.empty() || (kind == 0 && oracle_.pages.size() < 8)) {
      create();
    } else if (kind < 3) {
      alias();
    } else if (kind < 5) {
      take_away();
    } else {
      use_or_free();
    }
    if (step % 3 == 0) check();  // between checks the indexes by size are behind
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PageTableProgram, testing::Range<std::uint64_t>(0, 8));

}  // namespace
}  // namespace weir
