// SPDX-License-Identifier: Apache-2.0
// The places that requests had before, and the keys by which they are found again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/placement/placement_cache.h"

namespace weir {
namespace {

using testing::SizeIs;

constexpr auto kAny = [](Address) { return true; };

// Whose brief key is of its own.
RequestKeys keys_for(std::uint64_t key) {
  return {static_cast<std::uint32_t>(key),
          static_cast<std::uint32_t>(key >> 32 ^ key * 0x9e3779b9)};
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

TEST(PlacementCache, APlaceTooManyTakesThatOfItsKeysLastAndOfNoOtherKey) {
  PlacementCache memory;
  memory.remember(keys_for(8), Address{8});
  for (std::uint64_t i = 1; i <= 1'000'000; ++i) memory.remember(keys_for(7), Address{i});
  EXPECT_EQ(memory.recall(keys_for(8), kAny), Address{8});
  EXPECT_EQ(memory.recall(keys_for(7), kAny), Address{1});
  memory.clear();
  EXPECT_EQ(memory.recall(keys_for(7), kAny), std::nullopt);
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

std::vector<std::uint64_t> keys_of(RequestHistory& history, const std::vector<Bytes>& sizes) {
  std::vector<std::uint64_t> keys;
  for (const Bytes size : sizes) keys.push_back(RequestHistory::key(history.note(size)));
  return keys;
}

void subtract(RequestHistory& history, const std::vector<Bytes>& sizes) {
  for (const Bytes size : sizes) history.subtract(size);
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

}  // namespace
}  // namespace weir
