// Placement, and the effort that it is worth: which free addresses a request gets, without a
// device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/placement.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr HeapId kMine{0}, kOther{1};

// Pages and arenas as PageHeap keeps them, without a device.
class PlacementTest : public testing::Test, protected PageTable::Listener {
 protected:
  void usable(HeapId heap, Range addresses) override { arena(heap).usable().insert(addresses); }
  void unusable(HeapId heap, Range addresses) override { arena(heap).usable().erase(addresses); }

  Arena& arena(HeapId heap) {
    const auto [known, is_new] = arenas_.try_emplace(heap);
    if (is_new) known->second.add_region({Address{(1_TiB).count * (heap.value + 1)}, 64_GiB});
    return known->second;
  }
  PageId page(Bytes size) {
    const PageId id{static_cast<std::uint32_t>(handles_++)};
    table_.add(id, PhysicalHandle{handles_}, size);
    return id;
  }
  // A row of the pages; where it begins.
  Address row(HeapId heap, const std::vector<PageId>& pages) {
    Bytes size;
    for (const PageId id : pages) size += table_.page(id).size;
    EXPECT_TRUE(arena(heap).begin_row(size));
    const Address begin = arena(heap).frontier();
    ++rows_;
    for (const PageId id : pages) {
      table_.add_mapping(id, heap, arena(heap).take(table_.page(id).size), RowId{rows_});
    }
    return begin;
  }
  Placement placement(Bytes peak = 1_GiB, Bytes room = 1_TiB) {
    table_.tell(kMine);
    return {table_, arena(kMine), kMine, effort_, peak, room, 2_MiB};
  }
  std::optional<Placement::Found> find(Bytes size) { return placement().find(size); }
  template <class Avoid>
  std::optional<Placement::Found> find(Bytes size, Avoid&& avoid) {
    return placement().find(size, avoid);
  }

  PageTable table_{*this};
  std::map<HeapId, Arena> arenas_;
  Effort effort_;
  std::uint64_t handles_ = 0;
  std::uint32_t rows_ = 0;
};

TEST_F(PlacementTest, FindsNothingWhereNothingFits) {
  EXPECT_FALSE(find(512_B).has_value());
  row(kMine, {page(2_MiB)});
  EXPECT_FALSE(find(2_MiB + 512_B).has_value());
  EXPECT_TRUE(find(2_MiB).has_value());
}

TEST_F(PlacementTest, PrefersAPlaceThatMakesNoIdlePageBusy) {
  const PageId busy = page(4_MiB);
  const Address idle_row = row(kMine, {page(2_MiB)});
  const Address busy_row = row(kMine, {busy});
  table_.use(busy, 0_B, 1_MiB, kMine);
  const std::optional<Placement::Found> found = find(1_MiB);
  ASSERT_TRUE(found.has_value());
  EXPECT_GE(found->address, busy_row);
  EXPECT_EQ(found->activated, 0_B);
  EXPECT_LT(idle_row, busy_row);  // though the idle one is smaller, and lower
}

TEST_F(PlacementTest, PrefersTheEndOfARunNextToBytesInUse) {
  const PageId left = page(4_MiB), right = page(4_MiB);
  const Address begin = row(kMine, {left, right});
  table_.use(right, 3_MiB, 1_MiB, kMine);
  const std::optional<Placement::Found> found = find(1_MiB);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->address, begin + 6_MiB);
  EXPECT_EQ(found->activated, 0_B);
}

TEST_F(PlacementTest, LeavesTheLeastOver) {
  const PageId wide = page(64_MiB), narrow = page(64_MiB);
  row(kMine, {wide});
  const Address at = row(kMine, {narrow});
  table_.use(wide, 0_B, 1_MiB, kMine);
  table_.use(narrow, 10_MiB, 54_MiB, kMine);
  EXPECT_EQ(find(10_MiB)->address, at);
}

TEST_F(PlacementTest, OfEqualPlacesTheLowestAddressIsTaken) {
  const Address first = row(kMine, {page(4_MiB)});
  row(kMine, {page(4_MiB)});
  EXPECT_EQ(find(4_MiB)->address, first);
}

TEST_F(PlacementTest, PrefersAPageWhereItWasMappedFirst) {
  const PageId away = page(4_MiB), home = page(4_MiB);
  row(kOther, {away});
  row(kMine, {away});
  const Address at_home = row(kMine, {home});
  EXPECT_EQ(find(4_MiB)->address, at_home);
}

TEST_F(PlacementTest, APlaceToAvoidIsPassedOver) {
  const Address first = row(kMine, {page(4_MiB)}), second = row(kMine, {page(4_MiB)});
  const auto avoid_first = [&](Range range) { return range.begin < first + 4_MiB; };
  EXPECT_EQ(find(4_MiB, avoid_first)->address, second);
  EXPECT_FALSE(find(4_MiB, [](Range) { return true; }).has_value());
}

TEST_F(PlacementTest, WeighsABoundedNumberOfPlaces) {
  for (int i = 0; i < 100; ++i) row(kMine, {page(4_MiB)});
  int asked = 0;
  EXPECT_FALSE(find(2_MiB, [&](Range) {
                 ++asked;
                 return true;
               }).has_value());
  EXPECT_LE(asked, 48);  // both ends of each
}

TEST_F(PlacementTest, AnotherHeapsPagesAreNoPlace) {
  const PageId taken = page(4_MiB);
  row(kMine, {taken});
  row(kOther, {taken});
  table_.use(taken, 0_B, 512_B, kOther);
  EXPECT_FALSE(find(512_B).has_value());
}

TEST_F(PlacementTest, PlansNewPagesWhereThereAreNone) {
  const Plan plan = placement().plan(5_MiB);
  EXPECT_FALSE(plan.tail.has_value());
  EXPECT_FALSE(plan.head.has_value());
  EXPECT_THAT(plan.middle, IsEmpty());
  EXPECT_EQ(plan.create, 6_MiB);
  EXPECT_EQ(plan.activated, 6_MiB);
}

TEST_F(PlacementTest, PlansATailIdlePagesAndAHead) {
  const PageId tail = page(4_MiB), idle = page(6_MiB), head = page(4_MiB);
  row(kMine, {tail});
  row(kMine, {idle});
  row(kMine, {head});
  table_.use(tail, 0_B, 1_MiB, kMine);    // 3 MiB free behind
  table_.use(head, 2_MiB, 2_MiB, kMine);  // 2 MiB free in front
  const Plan plan = placement().plan(11_MiB);
  EXPECT_EQ(plan.tail, tail);
  EXPECT_EQ(plan.tail_bytes, 3_MiB);
  EXPECT_THAT(plan.middle, ElementsAre(idle));
  EXPECT_EQ(plan.head, head);
  EXPECT_EQ(plan.create, 0_B);
  EXPECT_EQ(plan.activated, 6_MiB);
}

TEST_F(PlacementTest, ATailThatSufficesIsTheWholePlan) {
  const PageId tail = page(4_MiB);
  row(kMine, {tail});
  row(kMine, {page(8_MiB)});
  table_.use(tail, 0_B, 1_MiB, kMine);
  const Plan plan = placement().plan(3_MiB);
  EXPECT_EQ(plan.tail, tail);
  EXPECT_THAT(plan.middle, IsEmpty());
  EXPECT_EQ(plan.create, 0_B);
  EXPECT_EQ(plan.activated, 0_B);
}

TEST_F(PlacementTest, AnIdlePageALittleTooLargeIsTakenRatherThanTheRestCreated) {
  const PageId idle = page(12_MiB);
  row(kMine, {idle});
  EXPECT_THAT(placement().plan(10_MiB).middle, ElementsAre(idle));
  EXPECT_EQ(placement().plan(4_MiB).create, 4_MiB);
  // ... but where no page may be created, whatever is there is taken.
  EXPECT_THAT(placement(1_GiB, 0_B).plan(4_MiB).middle, ElementsAre(idle));
}

TEST_F(PlacementTest, EveryPlanHasRoomAndNamesEachPageOnce) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    PageTable table(*this);
    std::vector<PageId> pages;
    for (std::uint64_t i = 0; i < 2 + random() % 12; ++i) {
      const PageId id{static_cast<std::uint32_t>(i)};
      table.add(id, PhysicalHandle{i}, 2_MiB * (1 + random() % 20));
      const std::uint64_t grains = table.page(id).size / kGrain;
      const HeapId heap = random() % 4 == 0 ? kOther : kMine;
      for (std::uint64_t uses = random() % 3; uses > 0; --uses) {
        const Bytes offset = kGrain * (random() % grains);
        bool free = true;
        for (const auto& [at, size] : table.page(id).used_ranges()) {
          free = free && !(at <= offset && offset < at + size);
        }
        if (free) table.use(id, offset, kGrain, table.page(id).lease.value_or(heap));
      }
    }
    Arena arena;
    for (int i = 0; i < 20; ++i) {
      const Bytes size = kGrain * (1 + random() % (100_MiB / kGrain));
      const Placement placement(table, arena, kMine, effort_, 2_MiB * (random() % 400),
                                2_MiB * (random() % 100), 2_MiB);
      const Plan plan = placement.plan(size);
      std::multiset<PageId> named(plan.middle.begin(), plan.middle.end());
      Bytes have = plan.create, activated = plan.create;
      for (const PageId id : plan.middle) {
        ASSERT_FALSE(table.page(id).lease.has_value());
        have += table.page(id).size;
        activated += table.page(id).size;
      }
      if (plan.tail) {
        named.insert(*plan.tail);
        ASSERT_EQ(table.page(*plan.tail).lease, kMine);
        ASSERT_EQ(table.page(*plan.tail).tail(), plan.tail_bytes);
      }
      have += plan.tail_bytes;
      if (plan.head) {
        named.insert(*plan.head);
        ASSERT_EQ(table.page(*plan.head).lease, kMine);
        // Its free start begins where the rest ends: no page in between is wasted.
        ASSERT_LT(have.count, size.count);
        have += table.page(*plan.head).head();
      }
      ASSERT_GE(have.count, size.count);
      ASSERT_EQ(plan.activated, activated);
      ASSERT_EQ(plan.create % 2_MiB, 0_B);
      for (const PageId id : named) ASSERT_EQ(named.count(id), 1u);
    }
  }
}

TEST_F(PlacementTest, NewPagesShareOutARequestEvenly) {
  EXPECT_THAT(placement(0_B).page_sizes(512_B), ElementsAre(2_MiB));
  EXPECT_THAT(placement(0_B).page_sizes(8_MiB), ElementsAre(8_MiB));
  EXPECT_THAT(placement(0_B).page_sizes(10_MiB), ElementsAre(6_MiB, 4_MiB));
  EXPECT_THAT(placement(0_B).page_sizes(0_B), IsEmpty());
  // The more the program has used, the larger they are, within bounds.
  EXPECT_THAT(placement(2_GiB).page_sizes(18_MiB), ElementsAre(10_MiB, 8_MiB));
  EXPECT_THAT(placement(4_GiB).page_sizes(18_MiB), ElementsAre(18_MiB));
  EXPECT_THAT(placement(1_TiB).page_sizes(160_MiB), ElementsAre(80_MiB, 80_MiB));
}

TEST_F(PlacementTest, NewPagesHoldTheRequestAndNoMorePagesThanNeedBe) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Bytes size{1 + random() % (1_GiB).count}, peak{random() % (40_GiB).count};
    const std::vector<Bytes> sizes = placement(peak).page_sizes(size);
    Bytes sum;
    for (const Bytes page : sizes) {
      ASSERT_EQ(page % 2_MiB, 0_B);
      ASSERT_LE(page, 80_MiB);
      ASSERT_GT(page, 0_B);
      sum += page;
    }
    ASSERT_EQ(sum, round_up(size, 2_MiB));
    const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
    ASSERT_LE((*most - *least).count, (2_MiB * 2).count);
  }
}

TEST_F(PlacementTest, GrowsToAHairAboveThePeakAndNotBeyondTheLimits) {
  page(100_MiB);
  EXPECT_TRUE(placement(200_MiB).may_grow(100_MiB));
  EXPECT_FALSE(placement(200_MiB).may_grow(102_MiB));
  EXPECT_TRUE(placement(1_GiB, 4_MiB).may_grow(4_MiB));
  EXPECT_FALSE(placement(1_GiB, 4_MiB).may_grow(6_MiB));
}

TEST_F(PlacementTest, ImprovesAPlaceOnlyWhereMemoryIsShortAndMuchIsWasted) {
  const PageId busy = page(900_MiB);
  table_.use(busy, 0_B, 512_B, kMine);
  EXPECT_TRUE(placement(1_GiB).worth_improving(10_MiB, 40_MiB));
  EXPECT_FALSE(placement(1_GiB).worth_improving(10_MiB, 12_MiB));  // little is wasted
  EXPECT_FALSE(placement(4_GiB).worth_improving(10_MiB, 40_MiB));  // memory is not short
  for (int i = 0; i < 1000; ++i) effort_.count_alias();
  EXPECT_FALSE(placement(1_GiB).worth_improving(10_MiB, 40_MiB));  // enough has been moved
}

TEST_F(PlacementTest, WhereMovingPagesGetsDearALittleMoreMemoryIsAllowed) {
  page(1000_MiB);
  EXPECT_FALSE(effort_.must_save());
  EXPECT_FALSE(placement(1000_MiB).may_grow(8_MiB));
  for (int i = 0; i < 1000; ++i) effort_.count_alias();
  EXPECT_TRUE(effort_.must_save());
  EXPECT_TRUE(placement(1000_MiB).may_grow(8_MiB));
  // What the program does meanwhile pays for it.
  effort_.count_requests(1'000'000, 10_TiB);
  EXPECT_FALSE(effort_.must_save());
  EXPECT_TRUE(effort_.may_improve());
}

TEST_F(PlacementTest, MovingIsGivenUpWhereItOverspentAndMemoryGrewAllTheSame) {
  page(1100_MiB);
  effort_.judge(1100_MiB, 1000_MiB);
  EXPECT_FALSE(effort_.gave_up());  // much is held, but little was moved
  effort_.serve(1_MiB, 1000_MiB);
  for (int i = 0; i < 1000; ++i) effort_.count_alias();
  effort_.judge(1020_MiB, 1000_MiB);
  EXPECT_FALSE(effort_.gave_up());  // moving is dear, but does what it is for
  EXPECT_FALSE(placement(1000_MiB).may_grow(30_MiB));

  effort_.judge(1100_MiB, 1000_MiB);
  EXPECT_TRUE(effort_.gave_up());
  EXPECT_TRUE(placement(1000_MiB).may_grow(50_MiB));
  EXPECT_FALSE(placement(1000_MiB).may_grow(60_MiB));
  EXPECT_FALSE(placement(1000_MiB, 4_MiB).may_grow(6_MiB));
  // One slack or the other.
  EXPECT_FALSE(placement(1000_MiB).may_grow(60_MiB, 100_MiB));
  EXPECT_TRUE(placement(1000_MiB).may_grow(250_MiB, 400_MiB));
  // For good, though the budget recovers: it would only be spent again.
  effort_.count_requests(1'000'000, 10_TiB);
  effort_.judge(1100_MiB, 1000_MiB);
  EXPECT_TRUE(effort_.gave_up());
  EXPECT_FALSE(effort_.may_improve());
  // ... until no more is held than moving is to save: after a trim, or with a higher peak.
  effort_.judge(1100_MiB, 1100_MiB);
  EXPECT_FALSE(effort_.gave_up());
  EXPECT_TRUE(effort_.may_improve());
}

TEST_F(PlacementTest, MovingForLargeRequestsIsGivenUpLater) {
  effort_.judge(1000_MiB, 1000_MiB);
  effort_.serve(11_MiB, 1000_MiB);
  for (int i = 0; i < 2400; ++i) effort_.count_alias();  // 49 ms
  effort_.judge(1100_MiB, 1000_MiB);
  EXPECT_TRUE(effort_.must_save());
  EXPECT_FALSE(effort_.gave_up());
  for (int i = 0; i < 100; ++i) effort_.count_alias();
  effort_.judge(1100_MiB, 1000_MiB);
  EXPECT_TRUE(effort_.gave_up());
}

TEST_F(PlacementTest, MovingIsNotGivenUpWhileTheProgramStillGrows) {
  effort_.serve(1_MiB, 1000_MiB);
  for (const Bytes peak : {1000_MiB, 1300_MiB, 1700_MiB, 2200_MiB}) {
    effort_.judge(peak, peak);
    for (int i = 0; i < 40; ++i) effort_.count_alias();
    effort_.judge(peak + peak / 10, peak);
    EXPECT_FALSE(effort_.gave_up()) << peak.count;
  }
  EXPECT_TRUE(effort_.must_save());
  effort_.judge(2500_MiB, 2300_MiB);  // no rise to speak of
  for (int i = 0; i < 40; ++i) effort_.count_alias();
  effort_.judge(2600_MiB, 2300_MiB);
  EXPECT_TRUE(effort_.gave_up());
}

TEST_F(PlacementTest, WhereMovingIsGivenUpTheSmallestRunIsTakenUnlessItIsAvoided) {
  const PageId busy = page(64_MiB);
  const Address idle_row = row(kMine, {page(4_MiB)}), busy_row = row(kMine, {busy});
  table_.use(busy, 0_B, 1_MiB, kMine);
  EXPECT_EQ(find(3_MiB)->address, busy_row + 1_MiB);  // makes no idle page busy
  effort_.judge(1000_MiB, 1000_MiB);
  effort_.serve(1_MiB, 1000_MiB);
  for (int i = 0; i < 1000; ++i) effort_.count_alias();
  effort_.judge(1100_MiB, 1000_MiB);
  EXPECT_EQ(find(3_MiB)->address, idle_row);
  EXPECT_EQ(find(3_MiB, [&](Range range) { return range.begin < idle_row + 4_MiB; })->address,
            busy_row + 1_MiB);
  EXPECT_FALSE(find(64_MiB).has_value());
}

}  // namespace
}  // namespace weir
