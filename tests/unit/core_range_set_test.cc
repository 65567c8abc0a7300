// RangeSet and Arena: which addresses are there, and where the next mapping goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "core/arena.h"
#include "core/range_set.h"

namespace weir {
namespace {

using testing::ElementsAre;

constexpr Address kBase{1 << 20};

Range cells(std::uint64_t first, std::uint64_t count) {
  return {kBase + kGrain * first, kGrain * count};
}

TEST(RangeSet, MergesWithTheNeighboursOnBothSides) {
  RangeSet set;
  set.insert(cells(0, 2));
  set.insert(cells(4, 2));
  EXPECT_EQ(set.count(), 2u);
  set.insert(cells(2, 2));
  EXPECT_THAT(set, ElementsAre(cells(0, 6)));
  EXPECT_TRUE(set.consistent());
}

TEST(RangeSet, ErasingTheMiddleLeavesBothSides) {
  RangeSet set;
  set.insert(cells(0, 10));
  set.erase(cells(3, 2));
  EXPECT_THAT(set, ElementsAre(cells(0, 3), cells(5, 5)));
  EXPECT_FALSE(set.contains(cells(2, 2)));
  EXPECT_TRUE(set.contains(cells(5, 5)));
}

TEST(RangeSet, BestFitIsTheSmallestAndOfEqualsTheLowest) {
  RangeSet set;
  set.insert(cells(0, 8));
  set.insert(cells(20, 4));
  set.insert(cells(10, 4));
  EXPECT_EQ(set.best_fit(kGrain * 3), cells(10, 4));
  EXPECT_EQ(set.best_fit(kGrain * 5), cells(0, 8));
  EXPECT_EQ(set.best_fit(kGrain * 9), std::nullopt);
}

TEST(RangeSet, VisitsFittingMembersSmallestFirstUntilToldToStop) {
  RangeSet set;
  set.insert(cells(0, 8));
  set.insert(cells(10, 2));
  set.insert(cells(20, 4));
  set.insert(cells(30, 4));
  std::vector<Range> seen;
  set.visit_fitting(kGrain * 3, [&](Range range) {
    seen.push_back(range);
    return seen.size() < 2;
  });
  EXPECT_THAT(seen, ElementsAre(cells(20, 4), cells(30, 4)));
}

TEST(RangeSet, FindsAMemberByItsEnd) {
  RangeSet set;
  set.insert(cells(2, 3));
  EXPECT_EQ(set.ending_at(cells(2, 3).end()), cells(2, 3));
  EXPECT_EQ(set.ending_at(cells(2, 2).end()), std::nullopt);
  EXPECT_EQ(set.ending_at(cells(2, 3).begin), std::nullopt);
}

// The same set as one flag for each cell.
class Bitmap {
 public:
  static constexpr std::uint64_t kCells = 96;

  void set(std::uint64_t first, std::uint64_t count, bool value) {
    std::fill_n(bits_.begin() + static_cast<std::ptrdiff_t>(first), count, value);
  }
  bool all(std::uint64_t first, std::uint64_t count, bool value) const {
    for (std::uint64_t i = first; i < first + count; ++i) {
      if (bits_[i] != value) return false;
    }
    return true;
  }
  std::vector<Range> runs() const {
    std::vector<Range> runs;
    for (std::uint64_t i = 0; i < kCells; ++i) {
      if (!bits_[i]) continue;
      std::uint64_t end = i;
      while (end < kCells && bits_[end]) ++end;
      runs.push_back(cells(i, end - i));
      i = end;
    }
    return runs;
  }

 private:
  std::vector<bool> bits_ = std::vector<bool>(kCells, false);
};

void expect_same(const RangeSet& set, const Bitmap& bitmap) {
  ASSERT_TRUE(set.consistent());
  const std::vector<Range> members(set.begin(), set.end());
  const std::vector<Range> runs = bitmap.runs();
  ASSERT_EQ(members, runs);
  ASSERT_EQ(set.empty(), runs.empty());

  for (std::uint64_t size = 1; size < 12; ++size) {
    std::vector<Range> fitting;
    for (const Range run : runs) {
      if (run.size >= kGrain * size) fitting.push_back(run);
    }
    std::stable_sort(fitting.begin(), fitting.end(),
                     [](Range a, Range b) { return a.size < b.size; });
    std::vector<Range> visited;
    set.visit_fitting(kGrain * size, [&](Range range) {
      visited.push_back(range);
      return true;
    });
    ASSERT_EQ(visited, fitting);
    ASSERT_EQ(set.best_fit(kGrain * size),
              fitting.empty() ? std::nullopt : std::optional<Range>(fitting.front()));
  }
}

TEST(RangeSet, AgreesWithABitmapOverRandomPrograms) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RangeSet set;
    Bitmap bitmap;
    for (int step = 0; step < 400; ++step) {
      const std::uint64_t first = random() % Bitmap::kCells;
      const std::uint64_t count = 1 + random() % std::min<std::uint64_t>(Bitmap::kCells - first, 9);
      const Range range = cells(first, count);
      ASSERT_EQ(set.contains(range), bitmap.all(first, count, true));
      ASSERT_EQ(set.overlaps(range), !bitmap.all(first, count, false));
      if (bitmap.all(first, count, false)) {
        set.insert(range);
        bitmap.set(first, count, true);
      } else if (bitmap.all(first, count, true)) {
        set.erase(range);
        bitmap.set(first, count, false);
      }
      expect_same(set, bitmap);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Arena, HasNoRoomBeforeItHasARegion) {
  Arena arena;
  EXPECT_FALSE(arena.has_room(2_MiB));
  EXPECT_FALSE(arena.begin_row(2_MiB));
  EXPECT_EQ(arena.frontier(), Address{});
}

TEST(Arena, ARowGrowsByWhatIsTakenAndKeepsAGapBehindIt) {
  Arena arena;
  const Range region{Address{(1_GiB).count}, 16_MiB};
  arena.add_region(region);
  ASSERT_TRUE(arena.begin_row(4_MiB));
  EXPECT_EQ(arena.frontier(), region.begin + Arena::kGap);
  EXPECT_EQ(arena.take(4_MiB), region.begin + 2_MiB);
  EXPECT_EQ(arena.frontier(), region.begin + 6_MiB);
  // The gap that ends the region, and the one behind the row, are never mapped.
  EXPECT_TRUE(arena.has_room(6_MiB));
  EXPECT_FALSE(arena.has_room(8_MiB));
}

TEST(Arena, BeginsARowOnlyWhereARegionHasRoomForItAndTwoGaps) {
  Arena arena;
  arena.add_region({Address{(1_GiB).count}, 10_MiB});
  EXPECT_FALSE(arena.begin_row(6_MiB));  // 8 MiB are left beside the region's own gap
  EXPECT_EQ(arena.frontier(), Address{});
  EXPECT_TRUE(arena.begin_row(4_MiB));
}

TEST(Arena, GivenBackAddressesAreMappedAgain) {
  Arena arena;
  arena.add_region({Address{(1_GiB).count}, 12_MiB});
  ASSERT_TRUE(arena.begin_row(6_MiB));
  const Range mapped{arena.take(6_MiB), 6_MiB};
  EXPECT_FALSE(arena.begin_row(4_MiB));
  arena.give_back(mapped);
  ASSERT_TRUE(arena.begin_row(6_MiB));
  EXPECT_EQ(arena.take(6_MiB), mapped.begin);
}

TEST(Arena, PositionIsTheDistanceFromTheFirstRegion) {
  Arena arena;
  arena.add_region({Address{(8_GiB).count}, 64_MiB});
  arena.add_region({Address{(4_GiB).count}, 64_MiB});
  EXPECT_EQ(arena.position(Address{(8_GiB).count} + 2_MiB), 2_MiB);
  EXPECT_EQ(arena.position(Address{(4_GiB).count}), 4_GiB);
}

// What is mapped, by address, and in which row.
struct Mapped {
  Bytes size;
  int row = 0;
};

void expect_rows_apart(const std::map<Address, Mapped>& mapped, const std::vector<Range>& regions) {
  const auto region_of = [&](Range range) {
    return std::find_if(regions.begin(), regions.end(),
                        [&](Range region) { return region.contains(range); });
  };
  for (auto it = mapped.begin(); it != mapped.end(); ++it) {
    const Range range{it->first, it->second.size};
    const auto region = region_of(range);
    ASSERT_NE(region, regions.end());
    ASSERT_GE(range.begin - region->begin, Arena::kGap);
    ASSERT_GE(region->end() - range.end(), Arena::kGap);
    const auto next = std::next(it);
    if (next == mapped.end()) continue;
    const Bytes least = next->second.row == it->second.row ? 0_B : Arena::kGap;
    ASSERT_GE(next->first.value, (range.end() + least).value);
  }
}

TEST(Arena, RowsNeverTouchInRandomPrograms) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Arena arena;
    std::vector<Range> regions;
    std::map<Address, Mapped> mapped;
    int row = 0;
    for (int step = 0; step < 500; ++step) {
      const Bytes size = 2_MiB * (1 + random() % 8);
      if (random() % 3 == 0 && !mapped.empty()) {
        const auto gone = std::next(mapped.begin(), static_cast<long>(random() % mapped.size()));
        arena.give_back({gone->first, gone->second.size});
        mapped.erase(gone);
      } else {
        if (!arena.has_room(size) || random() % 8 == 0) {
          if (!arena.begin_row(size)) {
            // Side by side with the one before: still not one region.
            const Address at = regions.empty() ? Address{(1_GiB).count} : regions.back().end();
            regions.push_back({at, 64_MiB});
            arena.add_region(regions.back());
            ASSERT_TRUE(arena.begin_row(size));
          }
          ++row;
        }
        ASSERT_TRUE(arena.has_room(size));
        mapped[arena.take(size)] = {size, row};
      }
      for (const auto& [at, what] : mapped) {
        ASSERT_FALSE(arena.vacant().overlaps({at, what.size})) << "a mapped address is vacant";
      }
      expect_rows_apart(mapped, regions);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace weir
