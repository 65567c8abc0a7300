// SPDX-License-Identifier: Apache-2.0
// HomePages: the pages of the home row, and which of them have bytes in use. GranuleMap: which page
// lies under an address.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/memory/granule_map.h"
#include "core/memory/home_pages.h"

namespace weir {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr HeapId kA{0}, kB{1};
constexpr Address kRow{(1_TiB).count};

TEST(GranuleMap, FindsAPageAtEachOfItsAddressesAndNotBeside) {
  GranuleMap map;
  Page page;
  const Address at = kRow + 6_MiB;
  map.set({at, 4_MiB}, page);
  for (const Address inside : {at, at + 1_B, at + 2_MiB - 1_B, at + 2_MiB, at + 4_MiB - 1_B}) {
    ASSERT_NE(map.find(inside), nullptr);
    EXPECT_EQ(map.find(inside)->page, &page);
    EXPECT_EQ(map.at(inside).page, &page);
  }
  EXPECT_EQ(map.find(at - 1_B), nullptr);
  EXPECT_EQ(map.find(at + 4_MiB), nullptr);
}

TEST(GranuleMap, AddressesOfWhichNothingIsKnownHaveNoPage) {
  GranuleMap map;
  Page page;
  EXPECT_EQ(map.find(kRow), nullptr);
  map.set({kRow, 2_MiB}, page);
  // Of the same table, of another one, and beyond all.
  for (const Address at : {kRow + 512_MiB, kRow + 1_GiB, kRow + 1_TiB, Address{}, GranuleMap::kEnd,
                           GranuleMap::kEnd - 1_B, Address{~std::uint64_t{0}}}) {
    EXPECT_EQ(map.find(at), nullptr) << at.value;
  }
}

// Also below the first that was mapped, and far away.
TEST(GranuleMap, PagesAnywhereAreFoundAndVisitedInOrder) {
  GranuleMap map;
  std::array<Page, 4> pages;
  const std::array<Address, 4> places{kRow, kRow - 64_GiB, Address{(2_MiB).count},
                                      GranuleMap::kEnd - 2_MiB};
  for (std::size_t i = 0; i < pages.size(); ++i) map.set({places[i], 2_MiB}, pages[i]);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    ASSERT_NE(map.find(places[i]), nullptr) << i;
    EXPECT_EQ(map.find(places[i])->page, &pages[i]) << i;
    EXPECT_EQ(&map.at(places[i]), map.find(places[i])) << i;
  }
  std::vector<std::pair<Address, const Page*>> visited;
  map.visit(
      [&](Address at, const GranuleMap::Entry& entry) { visited.emplace_back(at, entry.page); });
  EXPECT_THAT(visited, ElementsAre(Pair(places[2], &pages[2]), Pair(places[1], &pages[1]),
                                   Pair(places[0], &pages[0]), Pair(places[3], &pages[3])));
  EXPECT_EQ(map.find(kRow - 32_GiB), nullptr);
}

TEST(GranuleMap, APageThatIsClearedIsFoundNoMore) {
  GranuleMap map;
  Page page, other;
  map.set({kRow, 6_MiB}, page);
  map.clear({kRow + 2_MiB, 2_MiB});
  EXPECT_EQ(map.find(kRow)->page, &page);
  EXPECT_EQ(map.find(kRow + 2_MiB), nullptr);
  EXPECT_EQ(map.find(kRow + 4_MiB)->page, &page);
  map.set({kRow + 2_MiB, 2_MiB}, other);
  EXPECT_EQ(map.find(kRow + 2_MiB)->page, &other);
}

// A page across the end of a table of the last level, of the middle one, and at the end of all.
TEST(GranuleMap, PagesAreVisitedByAddressAcrossTables) {
  GranuleMap map;
  Page leaf, middle, last, first;
  const std::vector<std::pair<Range, Page*>> pages = {
      {{{}, 2_MiB}, &first},
      {{kRow + 1_GiB - 4_MiB, 8_MiB}, &leaf},
      {{kRow + 1_TiB - 2_MiB, 4_MiB}, &middle},
      {{GranuleMap::kEnd - 4_MiB, 4_MiB}, &last},
  };
  std::vector<std::pair<Address, const Page*>> expected, visited;
  for (const auto& [range, page] : pages) {
    for (Address at = range.begin; at < range.end(); at = at + GranuleMap::kGranule) {
      expected.emplace_back(at, page);
    }
  }
  for (const std::size_t index : {2u, 0u, 3u, 1u})
    map.set(pages[index].first, *pages[index].second);
  map.visit(
      [&](Address at, const GranuleMap::Entry& entry) { visited.emplace_back(at, entry.page); });
  EXPECT_EQ(visited, expected);
}

class HomePagesTest : public testing::Test {
 protected:
  using Part = std::tuple<PageId, Bytes, Bytes>;

  // Pages side by side, if nothing else is said.
  Page& add(Bytes size, Bytes gap = {}) {
    const PageId id{next_id_++};
    const Range home{next_ + gap, size};
    next_ = home.end();
    return pages_.add(id, PhysicalHandle{100 + id.value}, home, kA);
  }
  // The pages of the range, and whether their lease began (ended).
  std::vector<std::pair<PageId, bool>> use(Range range, HeapId heap = kA) {
    std::vector<std::pair<PageId, bool>> seen;
    pages_.use(range, heap, [&](Page& page, bool begins) { seen.emplace_back(page.id, begins); });
    return seen;
  }
  std::vector<std::pair<PageId, bool>> free(Range range) {
    std::vector<std::pair<PageId, bool>> seen;
    pages_.free(range, [&](Page& page, bool ends) { seen.emplace_back(page.id, ends); });
    return seen;
  }
  void TearDown() override { EXPECT_THAT(pages_.validate(), IsEmpty()); }

  HomePages pages_;
  Address next_ = kRow;
  std::uint32_t next_id_ = 0;
};

TEST_F(HomePagesTest, ANewPageIsIdle) {
  const Page& page = add(4_MiB);
  EXPECT_TRUE(page.idle());
  EXPECT_EQ(page.lease, std::nullopt);
  EXPECT_EQ(page.range(), (Range{kRow, 4_MiB}));
  EXPECT_EQ(page.handle, PhysicalHandle{100});
  EXPECT_EQ(page.heap, kA);
  EXPECT_EQ(page.kept, Page::Kept::no);
  EXPECT_EQ(pages_.total(), 4_MiB);
  EXPECT_EQ(pages_.leased(), 0_B);
  EXPECT_EQ(pages_.used(), 0_B);
}

TEST_F(HomePagesTest, TheFirstBytesInUseLeaseThePageAndTheLastEndIt) {
  Page& page = add(4_MiB);
  EXPECT_THAT(use({kRow, 1_MiB}, kB), ElementsAre(Pair(page.id, true)));
  EXPECT_EQ(page.lease, kB);
  EXPECT_EQ(pages_.leased(), 4_MiB);
  EXPECT_EQ(pages_.used(), 1_MiB);
  // Another heap's bytes in it change nothing: pages are shared by bytes.
  EXPECT_THAT(use({kRow + 3_MiB, 1_MiB}, kA), ElementsAre(Pair(page.id, false)));
  EXPECT_EQ(page.lease, kB);
  EXPECT_EQ(pages_.leased(), 4_MiB);
  EXPECT_EQ(pages_.used(), 2_MiB);

  EXPECT_THAT(free({kRow, 1_MiB}), ElementsAre(Pair(page.id, false)));
  EXPECT_EQ(page.lease, kB) << "of the heap that used it first since it was idle";
  EXPECT_THAT(free({kRow + 3_MiB, 1_MiB}), ElementsAre(Pair(page.id, true)));
  EXPECT_EQ(page.lease, std::nullopt);
  EXPECT_EQ(pages_.leased(), 0_B);
  EXPECT_EQ(pages_.used(), 0_B);
  EXPECT_THAT(use({kRow, kGrain}, kA), ElementsAre(Pair(page.id, true)));
  EXPECT_EQ(page.lease, kA);
}

TEST_F(HomePagesTest, ARangeIsUsedAndFreedInAllItsPages) {
  const Page& first = add(2_MiB);
  const Page& second = add(4_MiB);
  const Page& third = add(2_MiB);
  use({kRow, 512_KiB});
  EXPECT_THAT(use({kRow + 1_MiB, 6_MiB}),
              ElementsAre(Pair(first.id, false), Pair(second.id, true), Pair(third.id, true)));
  EXPECT_EQ(first.used, 1536_KiB);
  EXPECT_EQ(second.used, 4_MiB);
  EXPECT_EQ(third.used, 1_MiB);
  EXPECT_EQ(pages_.leased(), 8_MiB);
  EXPECT_EQ(pages_.used(), 6656_KiB);
  // Freed in other parts than it was used.
  EXPECT_THAT(free({kRow + 1_MiB, 3_MiB}),
              ElementsAre(Pair(first.id, false), Pair(second.id, false)));
  EXPECT_THAT(free({kRow + 4_MiB, 3_MiB}),
              ElementsAre(Pair(second.id, true), Pair(third.id, true)));
  EXPECT_EQ(pages_.leased(), 2_MiB);
  EXPECT_EQ(pages_.used(), 512_KiB);
}

TEST_F(HomePagesTest, AWalkHasThePartOfEachPage) {
  const Page& first = add(2_MiB);
  const Page& second = add(4_MiB);
  const Page& third = add(2_MiB);
  const auto parts = [&](Range range) {
    std::vector<Part> parts;
    pages_.walk(range, [&](const Page& page, Bytes offset, Bytes size) {
      parts.emplace_back(page.id, offset, size);
    });
    return parts;
  };
  EXPECT_THAT(parts({kRow + 1_MiB, 6_MiB}),
              ElementsAre(Part{first.id, 1_MiB, 1_MiB}, Part{second.id, 0_B, 4_MiB},
                          Part{third.id, 0_B, 1_MiB}));
  EXPECT_THAT(parts({kRow + 3_MiB, 1_MiB}), ElementsAre(Part{second.id, 1_MiB, 1_MiB}));
  EXPECT_THAT(parts({kRow + 2_MiB, 4_MiB}), ElementsAre(Part{second.id, 0_B, 4_MiB}));
  EXPECT_THAT(parts({kRow + 8_MiB - kGrain, kGrain}),
              ElementsAre(Part{third.id, 2_MiB - kGrain, kGrain}));
  EXPECT_THAT(parts({kRow, 0_B}), IsEmpty());
}

TEST_F(HomePagesTest, AllOfARangeMustBeMapped) {
  add(2_MiB);
  add(4_MiB);
  add(2_MiB, 2_MiB);
  EXPECT_TRUE(pages_.is_mapped({kRow, 6_MiB}));
  EXPECT_TRUE(pages_.is_mapped({kRow + 1_MiB, 5_MiB}));
  EXPECT_FALSE(pages_.is_mapped({kRow, 6_MiB + kGrain}));
  EXPECT_FALSE(pages_.is_mapped({kRow, 10_MiB})) << "a hole lies within";
  EXPECT_TRUE(pages_.is_mapped({kRow + 8_MiB, 2_MiB}));
  EXPECT_FALSE(pages_.is_mapped({kRow - kGrain, 1_MiB}));
  EXPECT_FALSE(pages_.is_mapped({Address{~std::uint64_t{0} - 4095}, kGrain}));
  EXPECT_FALSE(pages_.is_mapped({Address{(2_TiB).count}, kGrain}));
}

TEST_F(HomePagesTest, ARemovedPageLeavesAHoleForAnother) {
  add(2_MiB);
  Page& gone = add(4_MiB);
  add(2_MiB);
  const Range home = gone.range();
  pages_.remove(gone);
  EXPECT_FALSE(pages_.is_mapped({home.begin, kGrain}));
  EXPECT_TRUE(pages_.is_mapped({kRow, 2_MiB}));
  EXPECT_TRUE(pages_.is_mapped({home.end(), 2_MiB}));
  EXPECT_EQ(pages_.total(), 4_MiB);
  EXPECT_EQ(pages_.all().size(), 2u);

  // Of other sizes than the one that was there.
  pages_.add(PageId{70}, PhysicalHandle{7}, {home.begin, 2_MiB}, kB);
  EXPECT_FALSE(pages_.is_mapped(home));
  pages_.add(PageId{71}, PhysicalHandle{8}, {home.begin + 2_MiB, 2_MiB}, kB);
  EXPECT_TRUE(pages_.is_mapped({kRow, 8_MiB}));
  EXPECT_EQ(pages_.at(home.end() - 1_B).id, PageId{71});
  EXPECT_EQ(pages_.at(home.begin).heap, kB);
  EXPECT_EQ(pages_.total(), 8_MiB);
}

TEST_F(HomePagesTest, APageStaysWhereItIsWhenOthersComeAndGo) {
  const Page& page = add(2_MiB);
  for (int i = 0; i < 100; ++i) add(2_MiB);
  while (pages_.all().size() > 1) pages_.remove(std::prev(pages_.all().end())->second);
  EXPECT_EQ(&pages_.at(kRow), &page);
  EXPECT_EQ(&pages_.all().at(page.id.value), &page);
}

TEST_F(HomePagesTest, ValidateNamesBrokenRules) {
  Page& page = add(4_MiB);
  use({kRow, 1_MiB});
  const Page before = page;
  const auto broken = [&] {
    const std::vector<std::string> broken = pages_.validate();
    page = before;
    return broken;
  };
  EXPECT_THAT(broken(), IsEmpty());
  page.lease.reset();
  EXPECT_THAT(broken(), ElementsAre("page 0: in use, yet not leased"));
  page.used = 0_B;
  EXPECT_THAT(broken(), Contains("page 0: idle, yet leased"));
  page.used = 512_KiB;
  EXPECT_THAT(broken(), ElementsAre("pages: the bytes in use are summed wrong"));
  page.used = 5_MiB;
  EXPECT_THAT(broken(), Contains("page 0: more in use than it has"));
  page.id = PageId{3};
  EXPECT_THAT(broken(), ElementsAre("page 0: found by another's number"));
  page.size = 6_MiB;
  EXPECT_THAT(broken(), Contains("pages: the granules are not those of the pages"));
  page.size = 4_MiB + kGrain;
  EXPECT_THAT(broken(), Contains("page 0: not made of granules"));
  page.home = kRow + 2_MiB;
  EXPECT_THAT(broken(), ElementsAre("page 0: a granule of another place is its"));
}

// The same, with one flag for each cell of a page.
TEST_F(HomePagesTest, AgreesWithOneFlagForEachCellOverRandomPrograms) {
  constexpr Bytes kCell = 256_KiB;
  constexpr std::uint64_t kCells = 64_MiB / kCell;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    HomePages pages;
    struct Cell {
      std::optional<PageId> page;
      bool used = false;
    };
    std::vector<Cell> cells(kCells);
    std::map<PageId, std::optional<HeapId>> leases;
    std::map<PageId, Bytes> sizes;
    const auto in_use = [&](PageId id) {
      return std::count_if(cells.begin(), cells.end(),
                           [&](const Cell& cell) { return cell.page == id && cell.used; });
    };
    std::uint32_t next = 0;
    for (int step = 0; step < 600; ++step) {
      const std::uint64_t first = random() % kCells;
      const std::uint64_t granule = first / 8 * 8;
      if (!cells[first].page) {
        std::uint64_t end = granule + 8;
        while (end < kCells && !cells[end].page && random() % 2 == 0) end += 8;
        const PageId id{next++};
        sizes[id] = kCell * (end - granule);
        leases[id] = std::nullopt;
        pages.add(id, PhysicalHandle{next}, {kRow + kCell * granule, sizes[id]}, kA);
        for (std::uint64_t i = granule; i < end; ++i) cells[i].page = id;
      } else if (const PageId id = *cells[first].page; in_use(id) == 0 && random() % 3 == 0) {
        pages.remove(pages.at(kRow + kCell * first));
        for (Cell& cell : cells) {
          if (cell.page == id) cell = {};
        }
        leases.erase(id);
        sizes.erase(id);
      } else {
        // Cells that are mapped, and all alike.
        std::uint64_t end = first + 1;
        while (end < kCells && cells[end].page && cells[end].used == cells[first].used &&
               random() % 6 != 0) {
          ++end;
        }
        const bool uses = !cells[first].used;
        const HeapId heap{static_cast<std::uint32_t>(random() % 3)};
        const Range range{kRow + kCell * first, kCell * (end - first)};
        std::vector<std::pair<PageId, bool>> expected, seen;
        for (std::uint64_t i = first; i < end; ++i) {
          const PageId of_cell = *cells[i].page;
          const bool is_next = expected.empty() || expected.back().first != of_cell;
          if (is_next) expected.emplace_back(of_cell, uses && in_use(of_cell) == 0);
          cells[i].used = uses;
        }
        for (auto& [of_cell, changed] : expected) {
          if (!uses) changed = in_use(of_cell) == 0;
          if (changed) leases[of_cell] = uses ? std::optional(heap) : std::nullopt;
        }
        const auto note = [&](Page& page, bool changed) { seen.emplace_back(page.id, changed); };
        uses ? pages.use(range, heap, note) : pages.free(range, note);
        ASSERT_EQ(seen, expected);
      }
      Bytes total, leased, used;
      for (const auto& [id, size] : sizes) {
        const Bytes of_page = kCell * static_cast<std::uint64_t>(in_use(id));
        total += size;
        used += of_page;
        if (of_page > 0_B) leased += size;
        ASSERT_EQ(pages.all().at(id.value).used, of_page);
        ASSERT_EQ(pages.all().at(id.value).lease, leases.at(id));
      }
      ASSERT_EQ(pages.total(), total);
      ASSERT_EQ(pages.leased(), leased);
      ASSERT_EQ(pages.used(), used);
      ASSERT_EQ(pages.all().size(), sizes.size());
      ASSERT_THAT(pages.validate(), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace weir
