// SPDX-License-Identifier: Apache-2.0
// RunIndex: which run an address lies in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/heap/run_index.h"

namespace weir {
namespace {

// Any length will do: real runs are longer than the largest small block.
constexpr Bytes kShortest = 32_KiB;

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Address kFirst{(1_TiB).count};
constexpr Bytes kTable = 4_GiB;

class RunIndexTest : public testing::Test {
 protected:
  Block* add(Address begin, Bytes size) {
    Block& run = runs_.emplace_back();
    run.begin = begin;
    run.size = size;
    index_.add(&run);
    return &run;
  }
  std::vector<const Block*> all() const {
    std::vector<const Block*> all;
    index_.for_each([&](const Block* run) { all.push_back(run); });
    return all;
  }
  // Every address of `run` that may be special finds it.
  void expect_found(const Block* run) const {
    for (const Address at : {run->begin, run->begin + 1_B, run->begin + run->size / 2,
                             run->end() - kGrain, run->end() - 1_B}) {
      EXPECT_EQ(index_.at_or_before(at), run) << at.value - run->begin.value << " bytes into it";
    }
  }

  RunIndex index_;
  std::deque<Block> runs_;
};

TEST_F(RunIndexTest, AnEmptyIndexFindsNothing) {
  for (const Address at : {Address{}, kFirst, Address{~std::uint64_t{0}}}) {
    EXPECT_EQ(index_.at_or_before(at), nullptr);
  }
  EXPECT_THAT(all(), IsEmpty());
}

TEST_F(RunIndexTest, FindsARunAtEachOfItsAddressesAndNotBefore) {
  const Block* const run = add(kFirst + 3_MiB, 10_MiB + kGrain);
  expect_found(run);
  EXPECT_EQ(index_.at_or_before(run->begin - 1_B), nullptr);
  EXPECT_EQ(index_.at_or_before(run->begin - kGrain), nullptr);
  EXPECT_EQ(index_.at_or_before(run->begin - 1_GiB), nullptr);
  EXPECT_EQ(index_.at_or_before(Address{}), nullptr);
  EXPECT_EQ(index_.at_or_before(run->end()), run);  // the last that begins before it
}

TEST_F(RunIndexTest, ARunThatIsRemovedIsFoundNoMore) {
  Block* const before = add(kFirst, 1_MiB);
  Block* const run = add(before->end(), 1_MiB);
  index_.remove(run);
  EXPECT_EQ(index_.at_or_before(run->begin), before);
  EXPECT_EQ(index_.at_or_before(run->begin + 512_KiB), before);
  EXPECT_THAT(all(), ElementsAre(before));
  index_.remove(before);
  EXPECT_EQ(index_.at_or_before(run->begin), nullptr);
  EXPECT_EQ(index_.at_or_before(before->begin), nullptr);
  index_.add(run);
  expect_found(run);
}

// Many begin in each granule, at any place in it.
TEST_F(RunIndexTest, RunsSideBySideAreToldApart) {
  const Bytes shortest = kShortest + kGrain;
  for (std::uint64_t offset = 0; offset < kShortest / kGrain; offset += 7) {
    index_ = RunIndex();
    std::vector<const Block*> runs;
    Address at = kFirst + kGrain * offset;
    for (int i = 0; i < 70; ++i) {
      runs.push_back(add(at, shortest));
      at = at + shortest;
    }
    for (const Block* const run : runs) expect_found(run);
    ASSERT_EQ(all(), runs);
    EXPECT_EQ(index_.at_or_before(kFirst + kGrain * offset - 1_B), nullptr);
  }
}

TEST_F(RunIndexTest, RunsAcrossTablesAreFound) {
  const Block* const across = add(kFirst + kTable - 1_MiB, 2_MiB);
  const Block* const after = add(across->end(), 1_MiB);
  const Block* const last = add(kFirst + kTable * 2 - kGrain, 64_MiB);
  for (const Block* const run : {across, after, last}) expect_found(run);
  EXPECT_THAT(all(), ElementsAre(across, after, last));
  EXPECT_EQ(index_.at_or_before(across->begin - 1_B), nullptr);
}

TEST_F(RunIndexTest, ARunLongerThanSeveralTablesIsFoundInAllOfThem) {
  const Block* const run = add(kFirst + 5_MiB, 21_GiB);
  for (Address at = run->begin; at < run->end(); at = at + 333_MiB) {
    ASSERT_EQ(index_.at_or_before(at), run);
  }
  expect_found(run);
  const Block* const next = add(run->end(), 1_MiB);
  expect_found(run);
  expect_found(next);
}

TEST_F(RunIndexTest, TablesMayBeAddedBelowTheFirstAndFarAbove) {
  std::vector<const Block*> runs;
  for (const std::uint64_t table : {200u, 199u, 100u, 1000u, 0u, 150u, 30'000u}) {
    const Address at{kTable.count * table};
    runs.push_back(add(at + 4_MiB, 3_MiB));
    for (const Block* const run : runs) expect_found(run);
    const Block* before = nullptr;
    for (const Block* const run : runs) {
      if (run->begin < at && (before == nullptr || before->begin < run->begin)) before = run;
    }
    EXPECT_EQ(index_.at_or_before(at + 4_MiB - 1_B), before);
  }
  EXPECT_THAT(all(), ElementsAre(runs[4], runs[2], runs[5], runs[1], runs[0], runs[3], runs[6]));
}

// Addresses of which somebody has reserved nothing.
TEST_F(RunIndexTest, AddressesOutsideOfAllTablesHaveTheLastBeforeThem) {
  const Block* const first = add(kFirst, 1_MiB);
  const Block* const last = add(kFirst + kTable * 2 - 1_MiB, 1_MiB);
  EXPECT_EQ(index_.at_or_before(kFirst - 1_B), nullptr);
  EXPECT_EQ(index_.at_or_before(kFirst - kTable), nullptr);
  EXPECT_EQ(index_.at_or_before(last->end()), last);
  EXPECT_EQ(index_.at_or_before(first->end()), first);
  for (const Address far : {kFirst + kTable * 5, Address{~std::uint64_t{0}}}) {
    EXPECT_EQ(index_.at_or_before(far), last);
  }
}

// Runs by where they begin, as in a std::map.
class RunIndexProgram : public RunIndexTest {
 protected:
  void step() {
    if (expected_.empty() || random_() % 5 < 3) {
      add_somewhere();
    } else {
      const auto picked = expected_.lower_bound(somewhere());
      const auto gone = picked == expected_.end() ? expected_.begin() : picked;
      index_.remove(gone->second);
      expected_.erase(gone);
    }
    ASSERT_TRUE(index_.consistent());
    for (int i = 0; i < 20; ++i) check(somewhere());
    const auto near = expected_.lower_bound(somewhere());
    if (near == expected_.end()) return;
    const Block& run = *near->second;
    for (const Address at : {run.begin - 1_B, run.begin, run.end() - 1_B, run.end()}) check(at);
  }
  void expect_all() const {
    std::vector<const Block*> expected;
    for (const auto& [begin, run] : expected_) expected.push_back(run);
    EXPECT_EQ(all(), expected);
  }
  std::mt19937_64 random_;

 private:
  // In any of eight tables, near places that are often the same.
  Address somewhere() {
    const Address about = kFirst + kTable * (random_() % 8) + 96_MiB * (random_() % 6);
    return about + kGrain * (random_() % (random_() % 4 == 0 ? 20'000'000 : 40'000));
  }
  void add_somewhere() {
    const Address begin = somewhere();
    const std::uint64_t most = random_() % 50 == 0 ? 10'000'000 : random_() % 3 == 0 ? 100 : 9'000;
    const Bytes size = kShortest + kGrain * (1 + random_() % most);
    const auto after = expected_.lower_bound(begin);
    if (after != expected_.end() && after->first < begin + size) return;
    if (after != expected_.begin() && std::prev(after)->second->end() > begin) return;
    expected_[begin] = add(begin, size);
  }
  void check(Address at) const {
    const auto after = expected_.upper_bound(at);
    const Block* const last = after == expected_.begin() ? nullptr : std::prev(after)->second;
    ASSERT_EQ(index_.at_or_before(at), last);
  }

  std::map<Address, Block*> expected_;
};

TEST_F(RunIndexProgram, GivesBackItsMemoryOnlyWithoutRunsAndFindsNewOnesAnywhere) {
  index_.shrink();
  Block* const low = add(kFirst, 2_MiB);
  index_.shrink();
  EXPECT_EQ(index_.at_or_before(kFirst + 1_MiB), low);
  index_.remove(low);
  index_.shrink();
  EXPECT_EQ(index_.at_or_before(kFirst + 1_MiB), nullptr);
  EXPECT_EQ(index_.at_or_before_near(kFirst + 1_MiB), nullptr);
  const Address far = kFirst + kTable * 5;
  Block* const high = add(far, 2_MiB);
  EXPECT_EQ(index_.at_or_before(far + kTable), high);
  Block* const before = add(kFirst, 2_MiB);
  EXPECT_EQ(index_.at_or_before(far - 1_MiB), before);
  EXPECT_TRUE(index_.consistent());
}

TEST_F(RunIndexProgram, AgreesWithAMapOverRandomPrograms) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    for (int i = 0; i < 3000 && !HasFatalFailure(); ++i) step();
    expect_all();
  }
}

}  // namespace
}  // namespace weir
