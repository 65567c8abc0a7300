// SPDX-License-Identifier: Apache-2.0
// StitchedRows: addresses at which pages from several places stand side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/memory/home_pages.h"
#include "core/memory/stitched_rows.h"

namespace weir {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

using State = StitchedRow::State;

constexpr HeapId kA{0}, kB{1};
constexpr Address kHome{(1_TiB).count}, kRegion{(2_TiB).count};
constexpr Bytes kGap = StitchedRows::kGap;

class StitchedRowsTest : public testing::Test {
 protected:
  void SetUp() override { index_.add_region({kHome, 64_GiB}); }
  // Pages with a gap between them: a row's parts are then never side by side at home.
  Page& page(Bytes size) {
    const PageId id{next_id_++};
    const Range home{next_, size};
    next_ = home.end() + 2_MiB;
    return pages_.add(id, PhysicalHandle{id.value}, home, kA);
  }
  StitchedRow& row(const std::vector<Page*>& pages, Bytes lead = {}) {
    Bytes size;
    for (const Page* const each : pages) size += each->size;
    if (!rows_.has_room(size)) add_region(rows_.region_for(size));
    StitchedRow& row = rows_.add(size, kA);
    for (Page* const each : pages) rows_.append(row, *each);
    rows_.finish(row, lead);
    return row;
  }
  Range add_region(Bytes size) {
    const Range region{next_region_, size};
    next_region_ = region.end();
    rows_.add_region(region);
    return region;
  }
  void take_apart(StitchedRow& row) {
    if (row.state == State::idle) rows_.retire(row);
    while (!row.pages.empty()) rows_.drop_last(row);
    rows_.remove(row);
  }
  // Idle ones.
  std::vector<StitchedRow*> fitting(Bytes bytes, Bytes most) {
    std::vector<StitchedRow*> found;
    rows_.idle().visit_fitting(bytes, [&](StitchedRow& row) {
      if (row.fits(bytes) && row.size <= most) found.push_back(&row);
      return true;
    });
    return found;
  }
  // As whoever has a run in it.
  void use(StitchedRow& row, std::uint64_t now) {
    rows_.use(row, now);
    row.tile = &tile_;
  }
  std::vector<Range> parts(const StitchedRow& row, Bytes bytes) {
    std::vector<Range> parts;
    EXPECT_TRUE(row.visit_parts(bytes, [&](Range home) {
      parts.push_back(home);
      return true;
    }));
    return parts;
  }
  void TearDown() override { EXPECT_THAT(rows_.validate(), IsEmpty()); }

  TileIndex index_;
  HomePages pages_{index_};
  StitchedRows rows_;
  Tile tile_;
  Address next_ = kHome, next_region_ = kRegion;
  std::uint32_t next_id_ = 0;
};

TEST_F(StitchedRowsTest, WithoutARegionThereIsNoRoom) {
  EXPECT_FALSE(rows_.has_room(2_MiB));
  EXPECT_EQ(rows_.count(), 0u);
  EXPECT_EQ(rows_.at(kRegion), nullptr);
  EXPECT_EQ(rows_.around(kRegion), nullptr);
}

TEST_F(StitchedRowsTest, ARegionOfTheSizeThatIsAskedForHasRoom) {
  add_region(StitchedRows().region_for(10_MiB));
  EXPECT_TRUE(rows_.has_room(10_MiB));
  EXPECT_FALSE(rows_.has_room(12_MiB));
}

TEST_F(StitchedRowsTest, ARunBeginsBehindWhatIsNotTheRowsOfItsFirstPage) {
  Page &first = page(4_MiB), &second = page(2_MiB), &third = page(6_MiB);
  StitchedRow& stitched = row({&first, &second, &third}, 3_MiB);
  EXPECT_EQ(stitched.run(), stitched.begin + 3_MiB);
  EXPECT_EQ(stitched.size, 9_MiB);
  EXPECT_EQ(stitched.heap, kA);
  EXPECT_EQ(stitched.state, State::idle);
  EXPECT_EQ(rows_.mappings(), 3u);
  EXPECT_THAT(first.rows, ElementsAre(&stitched));
  EXPECT_EQ(stitched.mapped(), 12_MiB);
}

TEST_F(StitchedRowsTest, ARunOfTheRowsBytesHasAPartOfEachPage) {
  Page &first = page(4_MiB), &second = page(2_MiB), &third = page(6_MiB);
  const StitchedRow& stitched = row({&first, &second, &third}, 3_MiB);
  EXPECT_THAT(parts(stitched, 9_MiB),
              ElementsAre(Range{first.home + 3_MiB, 1_MiB}, second.range(), third.range()));
  EXPECT_THAT(
      parts(stitched, 3_MiB + kGrain),
      ElementsAre(Range{first.home + 3_MiB, 1_MiB}, second.range(), Range{third.home, kGrain}));
  EXPECT_THAT(parts(stitched, 3_MiB),
              ElementsAre(Range{first.home + 3_MiB, 1_MiB}, second.range()));
  EXPECT_THAT(parts(stitched, 512_KiB), ElementsAre(Range{first.home + 3_MiB, 512_KiB}));
}

TEST_F(StitchedRowsTest, AVisitOfPartsEndsWhereTheVisitorSaysSo) {
  const StitchedRow& stitched = row({&page(2_MiB), &page(2_MiB), &page(2_MiB)});
  int visited = 0;
  EXPECT_FALSE(stitched.visit_parts(6_MiB, [&](Range) { return ++visited < 2; }));
  EXPECT_EQ(visited, 2);
}

TEST_F(StitchedRowsTest, OnlyARunThatUsesBytesOfEveryPageFits) {
  const StitchedRow& stitched = row({&page(4_MiB), &page(2_MiB), &page(6_MiB)}, 1_MiB);
  EXPECT_FALSE(stitched.fits(11_MiB + kGrain));
  EXPECT_TRUE(stitched.fits(11_MiB));
  EXPECT_TRUE(stitched.fits(5_MiB + kGrain));
  EXPECT_FALSE(stitched.fits(5_MiB)) << "the last page would be idle";
}

TEST_F(StitchedRowsTest, RowsThatARunFitsAreFoundTheSmallestFirst) {
  StitchedRow& large = row({&page(8_MiB), &page(8_MiB)});
  StitchedRow& small = row({&page(8_MiB), &page(2_MiB)});
  StitchedRow& middle = row({&page(8_MiB), &page(4_MiB)});
  EXPECT_THAT(fitting(9_MiB, 100_MiB), ElementsAre(&small, &middle, &large));
  EXPECT_THAT(fitting(9_MiB, 12_MiB), ElementsAre(&small, &middle));
  EXPECT_THAT(fitting(9_MiB, 12_MiB - kGrain), ElementsAre(&small));
  EXPECT_THAT(fitting(10_MiB + kGrain, 100_MiB), ElementsAre(&middle, &large));
  EXPECT_THAT(fitting(16_MiB + kGrain, 100_MiB), IsEmpty());
  EXPECT_THAT(fitting(8_MiB, 100_MiB), IsEmpty()) << "no byte of the last page would be used";
}

TEST_F(StitchedRowsTest, ARowInUseIsNotGivenOutAgainUntilItIsFree) {
  StitchedRow &first = row({&page(2_MiB), &page(2_MiB)}),
              &second = row({&page(2_MiB), &page(2_MiB)});
  use(first, 7);
  EXPECT_EQ(first.state, State::used);
  EXPECT_EQ(first.used_at, 7u);
  EXPECT_THAT(fitting(4_MiB, 4_MiB), ElementsAre(&second));
  EXPECT_EQ(rows_.at(first.run()), &first) << "where a run is, it is found in any state";
  FenceSet users;
  users.join({TimelineId{3}, Sequence{5}});
  rows_.free(first, users, 9);
  EXPECT_EQ(first.state, State::idle);
  EXPECT_EQ(first.used_at, 9u);
  EXPECT_EQ(first.users, users);
  EXPECT_THAT(fitting(4_MiB, 4_MiB), testing::UnorderedElementsAre(&first, &second));
}

TEST_F(StitchedRowsTest, ARetiredRowIsNotGivenOutAndThenGone) {
  Page &first = page(2_MiB), &second = page(2_MiB);
  StitchedRow& gone = row({&first, &second});
  StitchedRow& other = row({&second, &first});
  rows_.retire(gone);
  EXPECT_THAT(fitting(4_MiB, 4_MiB), ElementsAre(&other));
  EXPECT_THAT(rows_.validate(), IsEmpty());
  rows_.drop_last(gone);
  EXPECT_THAT(second.rows, ElementsAre(&other));
  EXPECT_THAT(gone.pages, ElementsAre(&first));
  EXPECT_EQ(rows_.mappings(), 3u);
  EXPECT_THAT(rows_.validate(), IsEmpty());
  rows_.drop_last(gone);
  const Address begin = gone.begin;
  rows_.remove(gone);
  EXPECT_EQ(rows_.count(), 1u);
  EXPECT_EQ(rows_.around(begin), nullptr);
  EXPECT_THAT(first.rows, ElementsAre(&other));
}

TEST_F(StitchedRowsTest, ARowThatCouldNotBeMappedIsRemovedWithoutATrace) {
  add_region(StitchedRows().region_for(6_MiB));
  StitchedRow& unfinished = rows_.add(6_MiB, kB);
  EXPECT_EQ(unfinished.heap, kB);
  EXPECT_THAT(rows_.validate(), IsEmpty());
  EXPECT_FALSE(rows_.has_room(6_MiB));
  EXPECT_EQ(rows_.at(unfinished.run()), nullptr) << "no run begins where nothing is mapped";
  Page& only = page(2_MiB);
  rows_.append(unfinished, only);
  EXPECT_THAT(rows_.validate(), IsEmpty());
  EXPECT_THAT(fitting(2_MiB, 6_MiB), IsEmpty());
  take_apart(unfinished);
  EXPECT_THAT(only.rows, IsEmpty());
  EXPECT_EQ(rows_.mappings(), 0u);
  EXPECT_TRUE(rows_.has_room(6_MiB));
}

TEST_F(StitchedRowsTest, ARowIsFoundByItsRunAndByAnyAddressInIt) {
  add_region(1_GiB);
  StitchedRow& first = row({&page(4_MiB), &page(2_MiB)}, 1_MiB);
  StitchedRow& second = row({&page(2_MiB), &page(2_MiB)});
  EXPECT_EQ(rows_.at(first.begin + 1_MiB), &first);
  EXPECT_EQ(rows_.at(first.begin), nullptr);
  EXPECT_EQ(rows_.at(first.begin + 2_MiB), nullptr);
  EXPECT_EQ(rows_.at(second.begin), &second);
  EXPECT_EQ(rows_.around(first.begin), &first);
  EXPECT_EQ(rows_.around(first.begin + 6_MiB - 1_B), &first);
  EXPECT_EQ(rows_.around(second.begin + 4_MiB - 1_B), &second);
  EXPECT_EQ(rows_.around(kRegion - 1_B), nullptr);
  EXPECT_EQ(rows_.around(kRegion + 1_GiB), nullptr);
}

TEST_F(StitchedRowsTest, BetweenTwoRowsStaysAGap) {
  add_region(1_GiB);
  std::vector<Range> mapped;
  for (int i = 0; i < 20; ++i) {
    const StitchedRow& stitched = row({&page(2_MiB), &page(4_MiB)}, 1_MiB);
    mapped.push_back({stitched.begin, 6_MiB});
  }
  std::sort(mapped.begin(), mapped.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < mapped.size(); ++i) {
    EXPECT_GE(mapped[i].begin - mapped[i - 1].end(), kGap);
  }
}

TEST_F(StitchedRowsTest, AddressesOfRowsThatAreGoneServeLargerOnes) {
  const Range region = add_region(StitchedRows().region_for(30_MiB));
  std::vector<StitchedRow*> all;
  while (rows_.has_room(4_MiB)) all.push_back(&row({&page(2_MiB), &page(2_MiB)}));
  ASSERT_GE(all.size(), 5u);
  EXPECT_FALSE(rows_.has_room(30_MiB));
  for (const std::size_t index : {1u, 3u, 0u, 2u}) {  // alone, alone, before one, between two
    take_apart(*all[index]);
    EXPECT_THAT(rows_.validate(), IsEmpty());
  }
  EXPECT_TRUE(rows_.has_room(4_MiB * 4 + kGap * 3));
  for (std::size_t i = 4; i < all.size(); ++i) take_apart(*all[i]);
  ASSERT_TRUE(rows_.has_room(30_MiB));
  const StitchedRow& large = row({&page(30_MiB)});
  EXPECT_TRUE(region.contains({large.begin, 30_MiB}));
}

TEST_F(StitchedRowsTest, TheSmallestHoleThatHasRoomIsTaken) {
  add_region(64_MiB);
  StitchedRow& first = row({&page(8_MiB)});
  row({&page(2_MiB)});
  StitchedRow& third = row({&page(4_MiB)});
  row({&page(2_MiB)});
  const Address wide = first.begin, narrow = third.begin;
  take_apart(first);
  take_apart(third);
  EXPECT_EQ(row({&page(4_MiB)}).begin, narrow);
  EXPECT_EQ(row({&page(6_MiB)}).begin, wide);
}

TEST_F(StitchedRowsTest, EachUsableAddressOfARegionIsARowsOrVacant) {
  const std::vector<Range> regions = {add_region(64_MiB), add_region(128_MiB)};
  std::vector<StitchedRow*> all;
  const auto expect_all = [&] {
    for (const Range region : regions) {
      EXPECT_EQ(rows_.addresses_in(region), StitchedRows().usable(region).size);
    }
  };
  for (int i = 0; i < 12; ++i) {
    all.push_back(&row({&page(8_MiB), &page(2_MiB)}));
    expect_all();
  }
  for (StitchedRow* const each : all) {
    take_apart(*each);
    expect_all();
  }
  EXPECT_EQ(rows_.addresses_in({kRegion - 1_GiB, 1_GiB}), 0_B);
}

// The driver maps no page across the end of what was reserved at once.
TEST_F(StitchedRowsTest, NoRowLiesAcrossTwoRegionsSideBySide) {
  const Range first = add_region(StitchedRows().region_for(10_MiB));
  const Range second = add_region(StitchedRows().region_for(10_MiB));
  ASSERT_EQ(first.end(), second.begin);
  StitchedRow &one = row({&page(10_MiB)}), &two = row({&page(10_MiB)});
  EXPECT_FALSE(rows_.has_room(2_MiB));
  take_apart(one);
  take_apart(two);
  EXPECT_TRUE(rows_.has_room(10_MiB));
  EXPECT_FALSE(rows_.has_room(10_MiB + kGrain));
  EXPECT_THAT(rows_.validate(), IsEmpty());
}

// Rows of random pages come and go: their addresses never overlap, and all that is found is right.
TEST_F(StitchedRowsTest, AgreesWithAListOfAllRowsOverRandomPrograms) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<Page*> pages;
    for (int i = 0; i < 12; ++i) pages.push_back(&page(2_MiB * (1 + random() % 8)));
    std::vector<StitchedRow*> all;
    for (int step = 0; step < 500; ++step) {
      const std::uint64_t kind = random() % 8;
      if (all.empty() || kind < 3) {
        std::shuffle(pages.begin(), pages.end(), random);
        const std::vector<Page*> some(pages.begin(), pages.begin() + 1 + random() % 6);
        const Bytes lead = some.size() > 1 ? kGrain * (random() % (some[0]->size / kGrain)) : 0_B;
        all.push_back(&row(some, lead));
      } else {
        std::swap(all[random() % all.size()], all.back());
        StitchedRow& any = *all.back();
        if (any.state == State::used) {
          rows_.free(any, {}, static_cast<std::uint64_t>(step));
        } else if (kind < 6) {
          use(any, static_cast<std::uint64_t>(step));
        } else {
          take_apart(any);
          all.pop_back();
        }
      }
      ASSERT_THAT(rows_.validate(), IsEmpty());
      ASSERT_EQ(rows_.count(), all.size());
      std::map<Address, Bytes> mapped;
      for (StitchedRow* const each : all) {
        Bytes size;
        for (const Page* const of_row : each->pages) size += of_row->size;
        mapped[each->begin] = size;
        ASSERT_EQ(rows_.at(each->run()), each);
        ASSERT_EQ(rows_.around(each->begin + size - 1_B), each);
      }
      for (auto at = mapped.begin(); at != mapped.end() && std::next(at) != mapped.end(); ++at) {
        ASSERT_LE(at->first + at->second + kGap, std::next(at)->first);
      }
      const Bytes bytes = kGrain * (1 + random() % (40_MiB / kGrain)), most = bytes * 2;
      const std::vector<StitchedRow*> found = fitting(bytes, most);
      for (StitchedRow* const each : all) {
        const bool fits = each->state == State::idle && each->fits(bytes) && each->size <= most;
        ASSERT_THAT(found, fits ? testing::Matcher<std::vector<StitchedRow*>>(Contains(each))
                                : Not(Contains(each)));
      }
      for (StitchedRow* const each : found) {
        std::size_t pages_used = 0;
        Bytes sum;
        each->visit_parts(bytes, [&](Range home) {
          ++pages_used;
          sum += home.size;
          return true;
        });
        ASSERT_EQ(pages_used, each->pages.size());
        ASSERT_EQ(sum, bytes);
      }
    }
    while (!all.empty()) {
      if (all.back()->state == State::used) rows_.free(*all.back(), {}, 0);
      take_apart(*all.back());
      all.pop_back();
    }
    EXPECT_EQ(rows_.mappings(), 0u);
  }
}

}  // namespace
}  // namespace weir
