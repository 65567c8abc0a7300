// RangeSet: which addresses are there.
#include "comm/range_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

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
  EXPECT_THAT(set.members(), ElementsAre(cells(0, 2), cells(4, 2)));
  set.insert(cells(2, 2));
  EXPECT_THAT(set.members(), ElementsAre(cells(0, 6)));
}

TEST(RangeSet, ErasingTheMiddleLeavesBothSides) {
  RangeSet set;
  set.insert(cells(0, 10));
  set.erase(cells(3, 2));
  EXPECT_THAT(set.members(), ElementsAre(cells(0, 3), cells(5, 5)));
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
  const std::vector<Range> runs = bitmap.runs();
  ASSERT_EQ(set.members(), runs);
  for (std::uint64_t size = 1; size <= Bitmap::kCells; ++size) {
    std::optional<Range> smallest;
    for (const Range run : runs) {
      if (run.size >= kGrain * size && (!smallest || run.size < smallest->size)) smallest = run;
    }
    ASSERT_EQ(set.best_fit(kGrain * size), smallest);
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

}  // namespace
}  // namespace weir
