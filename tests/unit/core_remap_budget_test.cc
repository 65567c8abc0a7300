// SPDX-License-Identifier: Apache-2.0
// RemapBudget: how many mappings of existing pages a program can afford.
#include <gtest/gtest.h>

#include <cstdint>

#include "core/memory/remap_budget.h"

namespace weir {
namespace {

// As the header says: what a mapping takes, and what a program's least time is.
constexpr double kMappingNs = 20'400, kRequestNs = 60'000, kGiBNs = 3e6;

std::uint64_t most(RemapBudget& budget) {
  std::uint64_t most = 0;
  while (budget.affords(most + 1)) ++most;
  return most;
}

TEST(RemapBudget, ANewProgramMaySpendTwentyFiveMillisecondsAtOnce) {
  RemapBudget budget;
  EXPECT_NEAR(static_cast<double>(most(budget)) * kMappingNs, 25e6, 2e6);
}

TEST(RemapBudget, IsFarOverdrawnOnceEightTimesWhatCanBeSavedIsOwed) {
  RemapBudget budget;
  const std::uint64_t all = most(budget);
  budget.spend(9 * all);
  EXPECT_FALSE(budget.is_far_overdrawn());
  budget.spend(1);
  EXPECT_TRUE(budget.is_far_overdrawn());
  budget.earn(0, 2_GiB);  // half a percent of the work on them is more than a mapping
  EXPECT_FALSE(budget.is_far_overdrawn());
}

TEST(RemapBudget, WhatIsOverspentIsPaidBackFirst) {
  RemapBudget budget, spent;
  spent.spend(most(spent));
  budget.spend(most(budget) + 100);
  EXPECT_FALSE(budget.affords(0));
  // The time of 100 mappings is half a percent of the work of so many requests.
  const auto requests = static_cast<std::uint64_t>(100 * kMappingNs / 0.005 / kRequestNs);
  budget.earn(requests - 10, 0_B);
  EXPECT_FALSE(budget.affords(0));
  budget.earn(20, 0_B);
  EXPECT_TRUE(budget.affords(0));
  EXPECT_FALSE(budget.affords(1));
  spent.earn(requests + 10, 0_B);
  EXPECT_EQ(most(spent), 100u);
}

TEST(RemapBudget, NoMoreIsSavedUpThanThereWasAtTheStart) {
  RemapBudget budget;
  const std::uint64_t at_first = most(budget);
  budget.earn(1'000'000'000, 100_TiB);
  EXPECT_EQ(most(budget), at_first);
  budget.spend(at_first);
  budget.earn(1'000'000'000, 100_TiB);
  EXPECT_EQ(most(budget), at_first);
}

// A program that spends whatever it can afford, from when nothing is left of the start.
void expect_half_a_percent(std::uint64_t requests, Bytes bytes) {
  RemapBudget budget;
  budget.spend(most(budget));
  std::uint64_t spent = 0;
  const int rounds = 20'000;
  for (int i = 0; i < rounds; ++i) {
    budget.earn(requests, bytes);
    for (; budget.affords(1); ++spent) budget.spend(1);
  }
  const double work =
      static_cast<double>(requests) * kRequestNs +
      static_cast<double>(bytes.count) / static_cast<double>((1_GiB).count) * kGiBNs;
  const double share = static_cast<double>(spent) * kMappingNs / (work * rounds);
  EXPECT_LE(share, 0.005 * 1.0001);
  EXPECT_GE(share, 0.005 * 0.99);
}

TEST(RemapBudget, MappingsTakeHalfAPercentOfTheTime) {
  expect_half_a_percent(1, 64_KiB);
  expect_half_a_percent(1, 1_GiB);
  expect_half_a_percent(64, 10_GiB);
}

}  // namespace
}  // namespace weir
