// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/pool/node_set.h"

namespace weir {
namespace {

TEST(NodeSet, HoldsWhatWasPutIn) {
  NodeSet set;
  EXPECT_FALSE(set.contains({1}));
  EXPECT_TRUE(set.insert({1}));
  EXPECT_FALSE(set.insert({1}));
  EXPECT_TRUE(set.contains({1}));
  EXPECT_FALSE(set.contains({2}));
  set.clear();
  EXPECT_FALSE(set.contains({1}));
  EXPECT_TRUE(set.insert({1}));
}

TEST(NodeSet, AgreesWithAnOrdinarySet) {
  std::mt19937_64 random(1);
  NodeSet set;
  std::set<std::uint64_t> model;
  for (int i = 0; i < 20'000; ++i) {
    // Like addresses, that differ in a few of the middle bits; and a few that collide.
    const std::uint64_t node = 0x7f00'0000'0000 + 64 * (random() % 10'000 + 1);
    EXPECT_EQ(set.insert({node}), model.insert(node).second);
    const std::uint64_t other = 0x7f00'0000'0000 + 64 * (random() % 20'000 + 1);
    EXPECT_EQ(set.contains({other}), model.contains(other));
  }
}

}  // namespace
}  // namespace weir
