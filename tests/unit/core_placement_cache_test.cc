// SPDX-License-Identifier: Apache-2.0
// What is remembered of requests: the places that the like had before, and the key of what was
// asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/placement/placement_cache.h"
#include "tests/unit/core_test_access.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

constexpr auto kAny = [](Address) { return true; };

// Whose brief key is of its own.
RequestKeys keys_for(std::uint64_t key) {
  return {static_cast<std::uint32_t>(key),
          static_cast<std::uint32_t>(key >> 32 ^ key * 0x9e3779b9)};
}

TEST(PlacementCache, RecallsPlacesInTheOrderTheyWereRemembered) {
  PlacementCache memory;
  EXPECT_FALSE(memory.recall(keys_for(7), kAny).has_value());
  memory.remember(keys_for(7), Address{100});
  memory.remember(keys_for(7), Address{200});
  EXPECT_EQ(memory.recall(keys_for(7), kAny), Address{100});
  EXPECT_EQ(memory.recall(keys_for(7), [](Address at) { return at != Address{100}; }),
            Address{200});
  EXPECT_FALSE(memory.recall(keys_for(7), [](Address) { return false; }).has_value());
}

TEST(PlacementCache, KeepsSixteenPlacesForAKeyAndReplacesTheLast) {
  PlacementCache memory;
  for (std::uint64_t i = 1; i <= 20; ++i) memory.remember(keys_for(7), Address{i});
  std::vector<std::uint64_t> seen;
  (void)memory.recall(keys_for(7), [&](Address at) {
    seen.push_back(at.value);
    return false;
  });
  EXPECT_THAT(seen, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 20));
}

TEST(PlacementCache, GrowingKeepsWhatIsRemembered) {
  PlacementCache memory;
  std::mt19937_64 random(3);
  std::map<std::uint64_t, Address> expected;
  for (std::uint64_t i = 1; i <= 20'000; ++i) expected[random()] = Address{i};
  for (const auto& [key, at] : expected) memory.remember(keys_for(key), at);
  for (const auto& [key, at] : expected) ASSERT_EQ(memory.recall(keys_for(key), kAny), at);
}

TEST(PlacementCache, PlacesThatAreReplacedTakeNoMoreRoomAndAreForgotten) {
  PlacementCache memory;
  for (std::uint64_t i = 1; i <= 10'000; ++i) memory.remember(keys_for(7), Address{i});
  EXPECT_LE(TestAccess::entries(memory), 256u);
  EXPECT_EQ(memory.recall(keys_for(7), kAny), Address{1});
  memory.clear();
  EXPECT_EQ(TestAccess::entries(memory), 0u);
}

// What it has of one brief key goes on in order while the table grows.
TEST(PlacementCache, PlacesOfOneKeyKeepTheirOrderWhileOthersAreAdded) {
  PlacementCache memory;
  std::mt19937_64 random(6);
  std::vector<std::uint64_t> expected;
  for (std::uint64_t i = 1; i <= 16; ++i) {
    memory.remember(keys_for(7), Address{i});
    expected.push_back(i);
    for (int other = 0; other < 3'000; ++other) memory.remember(keys_for(random()), Address{99});
  }
  std::vector<std::uint64_t> seen;
  EXPECT_FALSE(memory
                   .recall(keys_for(7),
                           [&](Address at) {
                             seen.push_back(at.value);
                             return false;
                           })
                   .has_value());
  EXPECT_EQ(seen, expected);
}

TEST(PlacementCache, IsBoundedAndForgetsTheOlder) {
  PlacementCache memory;
  std::mt19937_64 random(4);
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 1; i <= 1'000'000; ++i) {
    keys.push_back(random());
    memory.remember(keys_for(keys.back()), Address{i});
  }
  std::size_t recalled = 0;
  for (std::uint64_t i = 1; i <= keys.size(); ++i) {
    recalled += memory.recall(keys_for(keys[i - 1]), kAny) == Address{i};
  }
  EXPECT_LE(recalled, std::size_t{1} << 18);
  EXPECT_GE(recalled, std::size_t{1} << 16);
  EXPECT_EQ(memory.recall(keys_for(keys.back()), kAny), Address{1'000'000});
}

// A request that is placed between another's recall() and remember() keeps its place.
TEST(PlacementCache, WhatIsRememberedAfterARecallIsKept) {
  PlacementCache memory;
  memory.remember(keys_for(1), Address{1});
  EXPECT_FALSE(memory.recall({7, 7}, kAny).has_value());
  memory.remember({8, 7}, Address{8});
  memory.remember({7, 7}, Address{9});
  EXPECT_EQ(memory.recall({8, 7}, kAny), Address{8});
  EXPECT_EQ(memory.recall({7, 7}, kAny), Address{9});
}

// The brief key's places, those for the whole key before all others.
TEST(PlacementCache, WhatTheWholeKeyHasComesBeforeWhatTheBriefOneHas) {
  PlacementCache memory;
  constexpr std::uint32_t kBrief = 5;
  memory.remember({1, kBrief}, Address{100});
  memory.remember({2, kBrief}, Address{200});
  memory.remember({1, kBrief}, Address{300});
  memory.remember({2, kBrief + 1}, Address{400});
  const auto all_of = [&](RequestKeys keys) {
    std::vector<std::uint64_t> seen;
    EXPECT_FALSE(memory
                     .recall(keys,
                             [&](Address at) {
                               seen.push_back(at.value);
                               return false;
                             })
                     .has_value());
    return seen;
  };
  EXPECT_THAT(all_of({1, kBrief}), ElementsAre(100, 300, 200));
  EXPECT_THAT(all_of({2, kBrief}), ElementsAre(200, 100, 300));
  EXPECT_THAT(all_of({3, kBrief}), ElementsAre(100, 200, 300));
  EXPECT_THAT(all_of({2, kBrief + 1}), ElementsAre(400));
  EXPECT_EQ(memory.recall({2, kBrief}, kAny), Address{200});
  EXPECT_EQ(memory.recall({3, kBrief}, kAny), Address{100});
}

TEST(PlacementCache, APlaceRememberedAfterOthersWereRecalledIsItsKeys) {
  PlacementCache memory;
  std::mt19937_64 random(5);
  std::map<std::uint64_t, std::vector<std::uint64_t>> expected;
  for (std::uint64_t i = 1; i <= 5'000; ++i) {
    const std::uint64_t key = 1 + random() % 2'000, other = 1 + random() % 2'000;
    if (random() % 2 == 0) (void)memory.recall(keys_for(key), [](Address) { return false; });
    if (random() % 2 == 0) (void)memory.recall(keys_for(other), [](Address) { return false; });
    memory.remember(keys_for(key), Address{i});
    std::vector<std::uint64_t>& mine = expected[key];
    if (mine.size() == 16) mine.pop_back();
    mine.push_back(i);
  }
  for (const auto& [key, mine] : expected) {
    std::vector<std::uint64_t> recalled;
    (void)memory.recall(keys_for(key), [&](Address at) {
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
  EXPECT_LE(until_equal, 32);
  EXPECT_GE(until_equal, 28);  // the bits of the oldest go two at a time
}

// Both hold 4 MiB when they ask for 2 MiB and 3 MiB; before, they asked for other sizes.
TEST(RequestHistory, TheBriefKeyIsOfWhatIsHeldAndTheLastTwoSizes) {
  RequestHistory one, two;
  (void)keys_of(one, {4_MiB, 1_MiB});
  (void)keys_of(two, {4_MiB, 6_MiB, 7_MiB});
  one.subtract(1_MiB);
  two.subtract(13_MiB);
  const auto next = [&](Bytes size) {
    const RequestHistory::Name a = one.note(size), b = two.note(size);
    return std::pair(one.keys(a), two.keys(b));
  };
  const auto [first, second] = next(2_MiB);
  EXPECT_NE(first.brief, second.brief);
  const auto [third, fourth] = next(3_MiB);
  EXPECT_EQ(third.brief, fourth.brief);
  EXPECT_NE(third.whole, fourth.whole);
  EXPECT_NE(third.brief, third.whole);
  EXPECT_NE(third.brief, first.brief);
  one.subtract(4_MiB);
  const auto [fifth, sixth] = next(3_MiB);
  EXPECT_NE(fifth.brief, sixth.brief) << "they hold other amounts";
}

TEST(RequestHistory, TheBriefKeyLooksNoFurtherBackThanWhenNothingWasHeld) {
  RequestHistory fresh, used;
  (void)used.note(5_MiB);
  used.subtract(5_MiB);
  EXPECT_EQ(fresh.keys(fresh.note(2_MiB)).brief, used.keys(used.note(2_MiB)).brief);
}

}  // namespace
}  // namespace weir
