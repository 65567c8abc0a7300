// SPDX-License-Identifier: Apache-2.0
// plan_stitch(): which free pieces of the home row are put side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/memory/home_pages.h"
#include "core/memory/stitch_plan.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;
using testing::UnorderedElementsAre;

constexpr Address kRow{(1_TiB).count};
constexpr Bytes kGranularity = 2_MiB;

// Offsets are in KiB from the begin of the row.
Range kib(std::uint64_t begin, std::uint64_t end) {
  return {kRow + 1_KiB * begin, 1_KiB * (end - begin)};
}
constexpr std::uint64_t operator""_m(unsigned long long mib) { return mib * 1024; }

class StitchPlanTest : public testing::Test {
 protected:
  // Pages of 4 MiB, side by side.
  void SetUp() override {
    index_.add_region({kRow, 1_GiB});
    for (std::uint32_t i = 0; i < 32; ++i) {
      pages_.add(PageId{i}, PhysicalHandle{i}, kib(i * 4_m, i * 4_m + 4_m), HeapId{0});
    }
  }
  StitchPlan plan(Bytes size, const std::vector<Range>& free) const {
    return plan_stitch(size, free, pages_, kGranularity);
  }

  TileIndex index_;
  HomePages pages_{index_};
};

TEST_F(StitchPlanTest, WithoutFreeMemoryAllIsCreated) {
  const StitchPlan plan = this->plan(5_MiB, {});
  EXPECT_THAT(plan.front, IsEmpty());
  EXPECT_EQ(plan.create, 6_MiB);
  EXPECT_EQ(plan.head, std::nullopt);
  EXPECT_FALSE(plan.is_one_piece());
  EXPECT_EQ(plan.mappings(pages_), 0u);
}

TEST_F(StitchPlanTest, BytesInTheMiddleOfAPageAreOfNoUse) {
  const StitchPlan plan = this->plan(3_MiB, {kib(1_m, 3_m), kib(5_m, 7_m)});
  EXPECT_THAT(plan.front, IsEmpty());
  EXPECT_EQ(plan.create, 4_MiB);
  EXPECT_EQ(plan.head, std::nullopt);
}

TEST_F(StitchPlanTest, AFreeEndOfAPageAndAFreeStartMakeARow) {
  const StitchPlan plan = this->plan(5_MiB, {kib(1_m, 4_m), kib(20_m, 23_m)});
  EXPECT_THAT(plan.front, ElementsAre(kib(1_m, 4_m)));
  EXPECT_THAT(plan.head, Optional(kib(20_m, 22_m)));
  EXPECT_EQ(plan.create, 0_B);
  EXPECT_FALSE(plan.is_one_piece());
  EXPECT_EQ(plan.mappings(pages_), 2u);
}

TEST_F(StitchPlanTest, OfPairsThatSufficeTheSmallestIsTaken) {
  // Ends of 3, 2 and 1 MiB; starts of 3, 2 and 1 MiB.
  const std::vector<Range> free = {kib(1_m, 4_m),   kib(10_m, 12_m), kib(19_m, 20_m),
                                   kib(40_m, 43_m), kib(48_m, 50_m), kib(56_m, 57_m)};
  const StitchPlan five = plan(5_MiB - kGrain, free);
  ASSERT_EQ(five.front.size(), 1u);
  ASSERT_TRUE(five.head.has_value());
  EXPECT_EQ(five.front[0].size + five.head->size, 5_MiB - kGrain);
  // Not both of the largest.
  EXPECT_TRUE(five.front[0] == kib(10_m, 12_m) || five.head->begin == kib(48_m, 50_m).begin);
  const StitchPlan six = plan(6_MiB, free);
  EXPECT_THAT(six.front, ElementsAre(kib(1_m, 4_m)));
  EXPECT_THAT(six.head, Optional(kib(40_m, 43_m)));
}

TEST_F(StitchPlanTest, AStartWithTheWholeRequestIsAPlaceAndNoRow) {
  const StitchPlan plan = this->plan(5_MiB, {kib(1_m, 4_m), kib(20_m, 31_m), kib(40_m, 46_m)});
  EXPECT_TRUE(plan.is_one_piece());
  EXPECT_THAT(plan.head, Optional(kib(40_m, 45_m)));  // of those that suffice, the smallest
}

TEST_F(StitchPlanTest, AnEndWithTheWholeRequestIsAPlaceAndNoRow) {
  const StitchPlan plan = this->plan(5_MiB, {kib(33_m, 40_m), kib(2_m, 8_m)});
  EXPECT_TRUE(plan.is_one_piece());
  EXPECT_THAT(plan.front, ElementsAre(kib(3_m, 8_m)));
  EXPECT_EQ(plan.head, std::nullopt);
}

TEST_F(StitchPlanTest, WholePagesGoBetweenAnEndAndAStart) {
  const StitchPlan plan =
      this->plan(18_MiB, {kib(1_m, 4_m), kib(20_m, 28_m), kib(32_m, 36_m), kib(40_m, 43_m)});
  // The largest end is the one of two whole pages.
  EXPECT_THAT(plan.front, ElementsAre(kib(20_m, 28_m), kib(32_m, 36_m)));
  EXPECT_EQ(plan.create, 4_MiB);
  EXPECT_THAT(plan.head, Optional(kib(40_m, 42_m)));
  EXPECT_EQ(plan.mappings(pages_), 4u);
}

TEST_F(StitchPlanTest, OfWholePagesTheLargestStretchesGoFirst) {
  const std::vector<Range> free = {kib(80_m, 84_m), kib(64_m, 72_m), kib(0_m, 16_m),
                                   kib(88_m, 92_m), kib(48_m, 60_m)};
  const StitchPlan plan = this->plan(37_MiB, free);
  EXPECT_THAT(plan.front, ElementsAre(kib(0_m, 16_m), kib(48_m, 60_m), kib(64_m, 72_m)));
  EXPECT_THAT(plan.head, Optional(kib(80_m, 81_m)));
  EXPECT_EQ(plan.create, 0_B);
}

TEST_F(StitchPlanTest, TheRowEndsWithinAPageThatIsLargerThanTheRest) {
  const StitchPlan plan = this->plan(10_MiB, {kib(20_m, 24_m), kib(28_m, 32_m), kib(36_m, 40_m)});
  EXPECT_EQ(plan.create, 0_B);
  EXPECT_EQ(plan.front.size(), 2u);
  ASSERT_TRUE(plan.head.has_value());
  EXPECT_EQ(plan.head->size, 2_MiB);
  EXPECT_EQ(plan.mappings(pages_), 3u);
}

TEST_F(StitchPlanTest, WhatIsMissingIsCreatedInWholePages) {
  const StitchPlan plan = this->plan(20_MiB, {kib(1_m, 4_m), kib(20_m, 24_m)});
  EXPECT_THAT(plan.front, UnorderedElementsAre(kib(20_m, 24_m)));  // the largest end
  EXPECT_EQ(plan.create, 16_MiB);
  EXPECT_EQ(plan.head, std::nullopt);
}

TEST_F(StitchPlanTest, NewMemoryStandsBetweenAnEndAndAStart) {
  const StitchPlan plan = this->plan(9_MiB, {kib(1_m, 4_m), kib(20_m, 22_m)});
  EXPECT_THAT(plan.front, ElementsAre(kib(1_m, 4_m)));
  EXPECT_EQ(plan.create, 4_MiB);
  EXPECT_THAT(plan.head, Optional(kib(20_m, 22_m)));
  // So much that the start is not needed, or less of it.
  const StitchPlan rounded = this->plan(8_MiB, {kib(1_m, 4_m), kib(20_m, 22_m)});
  EXPECT_EQ(rounded.create, 4_MiB);
  EXPECT_THAT(rounded.head, Optional(kib(20_m, 21_m)));
  const StitchPlan enough = this->plan(7_MiB, {kib(1_m, 4_m), kib(20_m, 20_m + 512)});
  EXPECT_EQ(enough.create, 4_MiB);
  EXPECT_EQ(enough.head, std::nullopt);
}

// Of a page whose middle is used, the end and the start can't both be in a row.
TEST_F(StitchPlanTest, TheEndAndTheStartOfOnePageAreNotInOneRow) {
  const StitchPlan plan = this->plan(3_MiB, {kib(4_m, 6_m), kib(6_m + 512, 8_m)});
  EXPECT_EQ(plan.front.size() + (plan.head ? 1 : 0), 1u);
  EXPECT_EQ(plan.create, 2_MiB);
}

// The start of a stretch may end in the page where the first piece begins.
TEST_F(StitchPlanTest, AStartThatEndsInThePageOfTheEndIsUsedAsFarAsItIsNoSuchPage) {
  const std::vector<Range> free = {kib(4_m, 9_m), kib(9_m + 512, 12_m)};
  // 2.5 MiB of the page at 8 MiB; of the stretch before it, the page at 4 MiB alone.
  const StitchPlan fits = plan(6_MiB, free);
  EXPECT_THAT(fits.front, ElementsAre(kib(9_m + 512, 12_m)));
  EXPECT_THAT(fits.head, Optional(kib(4_m, 7_m + 512)));
  EXPECT_EQ(fits.create, 0_B);
  const StitchPlan more = plan(7_MiB, free);
  EXPECT_GT(more.create, 0_B);
  EXPECT_LE(more.create, 4_MiB);
}

TEST_F(StitchPlanTest, NothingIsCreatedWhereWholePagesSuffice) {
  std::vector<Range> free;
  for (std::uint64_t i = 0; i < 12; ++i) free.push_back(kib(i * 8_m, i * 8_m + 4_m));
  for (std::uint64_t grains = 1; grains <= 48_MiB / kGrain; grains += 1111) {
    ASSERT_EQ(plan(kGrain * grains, free).create, 0_B) << grains << " grains";
  }
  EXPECT_EQ(plan(48_MiB, free).create, 0_B);
  EXPECT_EQ(plan(48_MiB + kGrain, free).create, 2_MiB);
}

TEST_F(StitchPlanTest, NewMemoryIsMadeOfTheDevicesGranularity) {
  EXPECT_EQ(plan_stitch(5_MiB, {}, pages_, 32_MiB).create, 32_MiB);
  const StitchPlan plan = plan_stitch(45_MiB, {kib(1_m, 4_m), kib(20_m, 22_m)}, pages_, 32_MiB);
  EXPECT_EQ(plan.create, 64_MiB);
  EXPECT_EQ(plan.head, std::nullopt);
}

}  // namespace
}  // namespace weir
