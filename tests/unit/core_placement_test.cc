// Placement, PlacementMemory and RequestHistory: which free addresses a request gets, without a
// device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/placement.h"
#include "core/placement_memory.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

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

constexpr auto kAny = [](Address) { return true; };

TEST(PlacementMemory, RecallsPlacesInTheOrderTheyWereRemembered) {
  PlacementMemory memory;
  EXPECT_FALSE(memory.recall(7, kAny).has_value());
  memory.remember(7, Address{100});
  memory.remember(7, Address{200});
  EXPECT_EQ(memory.recall(7, kAny), Address{100});
  EXPECT_EQ(memory.recall(7, [](Address at) { return at != Address{100}; }), Address{200});
  EXPECT_FALSE(memory.recall(7, [](Address) { return false; }).has_value());
}

TEST(PlacementMemory, KeepsEightPlacesForAKeyAndReplacesTheLast) {
  PlacementMemory memory;
  for (std::uint64_t i = 1; i <= 12; ++i) memory.remember(7, Address{i});
  std::vector<std::uint64_t> seen;
  (void)memory.recall(7, [&](Address at) {
    seen.push_back(at.value);
    return false;
  });
  EXPECT_THAT(seen, ElementsAre(1, 2, 3, 4, 5, 6, 7, 12));
}

TEST(PlacementMemory, GrowingKeepsWhatIsRemembered) {
  PlacementMemory memory;
  std::mt19937_64 random(3);
  std::map<std::uint64_t, Address> expected;
  for (std::uint64_t i = 1; i <= 20'000; ++i) expected[random()] = Address{i};
  for (const auto& [key, at] : expected) memory.remember(key, at);
  for (const auto& [key, at] : expected) ASSERT_EQ(memory.recall(key, kAny), at);
}

TEST(PlacementMemory, IsBoundedAndForgetsTheOlder) {
  PlacementMemory memory;
  std::mt19937_64 random(4);
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 1; i <= 1'000'000; ++i) {
    keys.push_back(random());
    memory.remember(keys.back(), Address{i});
  }
  std::size_t recalled = 0;
  for (const std::uint64_t key : keys) recalled += memory.recall(key, kAny).has_value();
  EXPECT_LE(recalled, std::size_t{1} << 18);
  EXPECT_GE(recalled, std::size_t{1} << 16);
  EXPECT_EQ(memory.recall(keys.back(), kAny), Address{1'000'000});
}

TEST(PlacementMemory, APlaceRememberedAfterOthersWereRecalledIsItsKeys) {
  PlacementMemory memory;
  std::mt19937_64 random(5);
  std::map<std::uint64_t, std::vector<std::uint64_t>> expected;
  for (std::uint64_t i = 1; i <= 5'000; ++i) {
    const std::uint64_t key = 1 + random() % 2'000, other = 1 + random() % 2'000;
    if (random() % 2 == 0) (void)memory.recall(key, [](Address) { return false; });
    if (random() % 2 == 0) (void)memory.recall(other, [](Address) { return false; });
    memory.remember(key, Address{i});
    std::vector<std::uint64_t>& mine = expected[key];
    if (mine.size() == 8) mine.pop_back();
    mine.push_back(i);
  }
  for (const auto& [key, mine] : expected) {
    std::vector<std::uint64_t> recalled;
    (void)memory.recall(key, [&](Address at) {
      recalled.push_back(at.value);
      return false;
    });
    ASSERT_EQ(recalled, mine);
  }
}

std::vector<std::uint64_t> keys_of(RequestHistory& history, const std::vector<Bytes>& sizes) {
  std::vector<std::uint64_t> keys;
  for (const Bytes size : sizes) keys.push_back(RequestHistory::key(history.note(size)));
  return keys;
}

// The key that a request would have; `history` is a copy.
std::uint64_t key_of(RequestHistory history, Bytes size) { return keys_of(history, {size})[0]; }

void subtract(RequestHistory& history, const std::vector<Bytes>& sizes) {
  for (const Bytes size : sizes) history.subtract(size);
}

TEST(RequestHistory, ARoundThatStartsFromNothingHasTheSameKeysAgain) {
  RequestHistory history;
  const std::vector<Bytes> sizes{1_MiB, 2_MiB, 1_MiB, 1_MiB, 3_MiB}, others{7_MiB, 9_MiB};
  const std::vector<std::uint64_t> first = keys_of(history, sizes);
  (void)keys_of(history, others);
  subtract(history, sizes);
  EXPECT_NE(key_of(history, sizes[0]), first[0]);  // the others are held still
  subtract(history, others);
  EXPECT_EQ(keys_of(history, sizes), first);
  EXPECT_THAT(std::set<std::uint64_t>(first.begin(), first.end()), SizeIs(5));
}

TEST(RequestHistory, ARoundLongerThanWhatIsRememberedHasTheSameKeysAgain) {
  RequestHistory history;
  std::vector<Bytes> sizes;
  std::mt19937_64 random(5);
  for (int i = 0; i < 100; ++i) sizes.push_back(kGrain * (1 + random() % 1000));
  const std::vector<std::uint64_t> first = keys_of(history, sizes);
  subtract(history, sizes);
  EXPECT_EQ(keys_of(history, sizes), first);
  EXPECT_THAT(std::set<std::uint64_t>(first.begin(), first.end()), SizeIs(100));
}

TEST(RequestHistory, ARequestIsNotedOnlyIfItHasTheNameThatIsExpected) {
  RequestHistory history, same;
  for (RequestHistory* const each : {&history, &same}) (void)each->note(4_MiB);
  const RequestHistory::Name name = RequestHistory(history).note(1_MiB);
  EXPECT_FALSE(history.note_if(1_MiB, name + 1));
  EXPECT_FALSE(history.note_if(2_MiB, name));
  EXPECT_EQ(key_of(history, 1_MiB), key_of(same, 1_MiB));
  EXPECT_TRUE(history.note_if(1_MiB, name));
  EXPECT_EQ(same.note(1_MiB), name);
  EXPECT_EQ(key_of(history, 3_MiB), key_of(same, 3_MiB));
  EXPECT_FALSE(history.note_if(1_MiB, name));
}

// Sizes of programs are multiples of each other, and orders of few sizes repeat.
TEST(RequestHistory, KeysOfAProgramThatDoesNotRepeatAreAllDifferent) {
  std::mt19937_64 random(6);
  RequestHistory history;
  std::set<std::uint64_t> keys;
  std::vector<Bytes> held;
  for (int i = 0; i < 20'000; ++i) {
    held.push_back(2_MiB * (1 + random() % 8));
    keys.insert(RequestHistory::key(history.note(held.back())));
    while (held.size() > 20) {
      std::swap(held[1 + random() % (held.size() - 1)], held.back());
      history.subtract(held.back());
      held.pop_back();
    }
  }
  EXPECT_THAT(keys, SizeIs(20'000));
}

TEST(RequestHistory, WhatIsHeldTellsTwoRequestsApart) {
  RequestHistory less, more;
  (void)keys_of(less, {1_MiB, 4_MiB});
  (void)keys_of(more, {1_MiB, 4_MiB});
  less.subtract(1_MiB);
  EXPECT_NE(key_of(less, 2_MiB), key_of(more, 2_MiB));
  more.subtract(1_MiB);
  EXPECT_EQ(key_of(less, 2_MiB), key_of(more, 2_MiB));
}

TEST(RequestHistory, TheOrderOfRequestsCounts) {
  RequestHistory ab, ba;
  (void)keys_of(ab, {1_MiB, 2_MiB});
  (void)keys_of(ba, {2_MiB, 1_MiB});
  EXPECT_NE(ab.note(3_MiB), ba.note(3_MiB));
}

TEST(RequestHistory, WhatIsLongPastCountsNoMore) {
  RequestHistory one, two;
  (void)one.note(1_MiB);
  (void)two.note(2_MiB);
  std::uint64_t key_one = 0, key_two = 0;
  int until_equal = 0;
  do {
    key_one = one.note(512_B * static_cast<std::uint64_t>(until_equal + 1));
    key_two = two.note(512_B * static_cast<std::uint64_t>(until_equal + 1));
    if (until_equal++ == 0) {  // from now on they hold the same
      one.subtract(1_MiB);
      two.subtract(2_MiB);
    }
  } while (key_one != key_two && until_equal < 1000);
  EXPECT_EQ(until_equal, 32);
}

}  // namespace
}  // namespace weir
