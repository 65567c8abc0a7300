// SPDX-License-Identifier: Apache-2.0
// AddressMap: whose run an address lies in, without a lock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/memory/address_map.h"

namespace weir {
namespace {

using testing::IsEmpty;

constexpr HeapId kA{0}, kB{1}, kC{64'000};
constexpr Bytes kStep = AddressMap::kStep, kSlot = AddressMap::kSlot;
constexpr Bytes kShortest = kStep + kGrain;
constexpr Address kFirst{(4_TiB).count};

class AddressMapTest : public testing::Test {
 protected:
  Range add_region(Address begin, std::uint64_t slots) {
    map_.add_region({begin, kSlot * slots});
    return {begin, kSlot * slots};
  }
  Range add(Address begin, Bytes size, HeapId heap) {
    map_.add_run({begin, size}, heap);
    return {begin, size};
  }
  // Every address of `run` that may be special.
  void expect_found(Range run, HeapId heap) const {
    std::vector<Address> special = {run.begin, run.begin + 1_B, run.begin + run.size / 2,
                                    run.end() - kGrain, run.end() - 1_B};
    Address step = run.begin - Bytes{run.begin.value % kStep.count} + kStep;
    for (int i = 0; i < 20 && step < run.end(); ++i, step = step + kStep) {
      special.insert(special.end(), {step - 1_B, step, step + kGrain});
    }
    for (const Address at : special) {
      if (at >= run.end()) continue;
      ASSERT_EQ(map_.find(at), heap) << at.value - run.begin.value << " bytes into the run";
      ASSERT_EQ(map_.owner(at), AddressMap::owner_of(heap));
    }
  }

  AddressMap map_;
};

TEST_F(AddressMapTest, WhereNothingIsReservedNobodyOwnsAnything) {
  for (const Address at : {Address{}, Address{512}, kFirst, Address{(std::uint64_t{1} << 49) - 1},
                           Address{std::uint64_t{1} << 49}, Address{~std::uint64_t{0}}}) {
    EXPECT_EQ(map_.owner(at), 0u) << at.value;
    EXPECT_EQ(map_.find(at), std::nullopt) << at.value;
  }
}

TEST_F(AddressMapTest, InARegionWithoutRunsNobodyOwnsAnything) {
  const Range region = add_region(kFirst, 3);
  for (Address at = region.begin; at < region.end(); at = at + 100_MiB) {
    EXPECT_EQ(map_.find(at), std::nullopt);
  }
  EXPECT_EQ(map_.find(region.end() - 1_B), std::nullopt);
}

TEST_F(AddressMapTest, CoversAddressesOf49Bits) {
  const Address end{std::uint64_t{1} << 49};
  EXPECT_TRUE(AddressMap::covers({kFirst, 64_GiB}));
  EXPECT_TRUE(AddressMap::covers({end - kSlot, kSlot}));
  EXPECT_FALSE(AddressMap::covers({end, kSlot}));
  EXPECT_FALSE(AddressMap::covers({end - kSlot, kSlot * 2}));
  add_region(end - kSlot, 1);
  expect_found(add(end - 1_MiB, 1_MiB, kC), kC);
}

TEST_F(AddressMapTest, ARunIsFoundAtEachOfItsAddressesAndNotBefore) {
  add_region(kFirst, 1);
  const Range run = add(kFirst + 3_MiB + kGrain * 7, 1_MiB + kGrain, kA);
  expect_found(run, kA);
  EXPECT_EQ(map_.find(run.begin - 1_B), std::nullopt);
  EXPECT_EQ(map_.find(run.begin - kGrain), std::nullopt);
  EXPECT_EQ(map_.find(kFirst), std::nullopt);
}

// The heap itself knows where its runs end.
TEST_F(AddressMapTest, BehindARunTheAddressesAreItsHeapsUntilTheNextRun) {
  const Range region = add_region(kFirst, 4);
  const Range first = add(kFirst + 3_MiB, 1_MiB, kA);
  const Range second = add(kFirst + kSlot * 2 + 1_MiB, 1_MiB, kB);
  EXPECT_EQ(map_.find(first.end()), kA);
  EXPECT_EQ(map_.find(first.end() + 100_MiB), kA);
  EXPECT_EQ(map_.find(kFirst + kSlot + 10_MiB), kA);  // a slot in which none begins
  EXPECT_EQ(map_.find(second.begin - 1_B), kA);
  EXPECT_EQ(map_.find(second.begin), kB);
  EXPECT_EQ(map_.find(region.end() - 1_B), kB);
  EXPECT_EQ(map_.find(region.end()), std::nullopt);
}

// Plain memory: regions of several heaps, and memory of others, lie in one slot.
TEST_F(AddressMapTest, RegionsShareASlot) {
  const Range first{kFirst + 10_MiB, 4_MiB}, second{kFirst + 14_MiB, 2_MiB};
  map_.add_region(first);
  map_.add_region(second);
  EXPECT_TRUE(map_.contains(first.begin) && map_.contains(second.end() - 1_B));
  EXPECT_FALSE(map_.contains(first.begin - 1_B));
  EXPECT_FALSE(map_.contains(second.end()));
  expect_found(add(first.begin, 1_MiB, kA), kA);
  const Range kept = add(second.begin, 2_MiB, kB);
  expect_found(kept, kB);

  map_.remove_run({first.begin, 1_MiB});
  map_.remove_region(first);
  EXPECT_FALSE(map_.contains(first.begin));
  EXPECT_FALSE(map_.contains(first.end() - 1_B));
  EXPECT_TRUE(map_.contains(second.begin));
  expect_found(kept, kB);

  map_.remove_run(kept);
  map_.remove_region(second);
  EXPECT_FALSE(map_.contains(second.begin));
  EXPECT_EQ(map_.find(second.begin), std::nullopt);
}

TEST_F(AddressMapTest, ARegionOverThePartsOfThreeSlotsIsWholeInTheMiddle) {
  const Range region{kFirst + kSlot - 2_MiB, kSlot + 4_MiB};
  map_.add_region(region);
  for (const Address at : {region.begin, kFirst + kSlot, kFirst + kSlot * 2, region.end() - 1_B}) {
    EXPECT_TRUE(map_.contains(at));
  }
  EXPECT_FALSE(map_.contains(region.begin - 1_B));
  EXPECT_FALSE(map_.contains(region.end()));
  expect_found(add(region.begin, region.size, kC), kC);
  map_.remove_run(region);
  map_.remove_region(region);
  for (const Address at : {region.begin, kFirst + kSlot, kFirst + kSlot * 2, region.end() - 1_B}) {
    EXPECT_FALSE(map_.contains(at));
  }
}

TEST_F(AddressMapTest, EachInnerPointerOfASlabIsFound) {
  add_region(kFirst, 1);
  const Address at = kFirst + 10_MiB + kGrain * 3;
  add(at - kShortest, kShortest, kB);
  const Range slab = add(at, 2_MiB, kA);
  add(slab.end(), kShortest, kB);
  for (Address block = slab.begin; block < slab.end(); block = block + kGrain) {
    ASSERT_EQ(map_.find(block), kA) << block.value - slab.begin.value << " bytes into it";
    ASSERT_EQ(map_.find(block + 100_B), kA);
  }
  EXPECT_EQ(map_.find(slab.begin - 1_B), kB);
  EXPECT_EQ(map_.find(slab.end()), kB);
}

// One begins in the step where the other ends, at each grain of the step.
TEST_F(AddressMapTest, RunsSideBySideInOneStepAreToldApart) {
  add_region(kFirst, 1);
  for (std::uint64_t offset = 0; offset < kStep / kGrain; offset += 3) {
    const Address middle = kFirst + 8_MiB + kGrain * offset;
    std::vector<std::pair<Range, HeapId>> runs = {{{middle - 3_MiB, 3_MiB}, kA},
                                                  {{middle, kShortest}, kB},
                                                  {{middle + kShortest, kShortest}, kC},
                                                  {{middle + kShortest * 2, 5_MiB}, kB}};
    // In whatever order they come.
    std::rotate(runs.begin(), runs.begin() + static_cast<long>(offset % 4), runs.end());
    for (const auto& [run, heap] : runs) map_.add_run(run, heap);
    for (const auto& [run, heap] : runs) expect_found(run, heap);
    // Whichever goes, the others are still found.
    for (std::size_t gone = 0; gone < runs.size(); ++gone) {
      map_.remove_run(runs[gone].first);
      for (std::size_t i = gone + 1; i < runs.size(); ++i) {
        expect_found(runs[i].first, runs[i].second);
      }
    }
    ASSERT_EQ(map_.find(middle + 1_MiB), std::nullopt);
    ASSERT_FALSE(HasFatalFailure()) << "at grain " << offset;
  }
}

TEST_F(AddressMapTest, AShortRunInsteadOfALongOneLeavesNoTraceOfIt) {
  add_region(kFirst, 1);
  const Range before = add(kFirst + 1_MiB, 1_MiB, kC);
  const Range gone = add(kFirst + 4_MiB + kGrain, 10_MiB, kA);
  map_.remove_run(gone);
  const Range small = add(kFirst + 4_MiB + kGrain, kShortest, kB);
  expect_found(small, kB);
  expect_found(before, kC);
  EXPECT_EQ(map_.find(gone.begin - 1_B), kC);
  for (Address at = small.end(); at < gone.end(); at = at + kGrain * 100) {
    ASSERT_EQ(map_.find(at), kB);
  }
  map_.remove_run(small);
  EXPECT_EQ(map_.find(gone.begin + 1_MiB), kC);
}

TEST_F(AddressMapTest, ALongRunIsFoundInAllSlotsOfARegion) {
  add_region(kFirst, 64);
  const Range run = add(kFirst + 5_MiB + kGrain, 15_GiB, kA);
  for (Address at = run.begin; at < run.end(); at = at + 33_MiB) ASSERT_EQ(map_.find(at), kA);
  for (std::uint64_t slot = 1; slot < 60; ++slot) {
    ASSERT_EQ(map_.find(kFirst + kSlot * slot), kA);
    ASSERT_EQ(map_.find(kFirst + kSlot * slot - 1_B), kA);
  }
  const Range next = add(run.end(), kShortest, kB);
  expect_found(run, kA);
  expect_found(next, kB);
}

TEST_F(AddressMapTest, ARunAcrossTheEndOfASlotIsFoundOnBothSides) {
  add_region(kFirst, 2);
  const Range run = add(kFirst + kSlot - kGrain, 4_MiB, kA);
  expect_found(run, kA);
  EXPECT_EQ(map_.find(run.begin - 1_B), std::nullopt);
  map_.remove_run(run);
  EXPECT_EQ(map_.find(kFirst + kSlot), std::nullopt);
}

TEST_F(AddressMapTest, RegionsFarApartAreKeptApart) {
  const std::vector<Range> regions = {add_region(Address{kSlot.count}, 1), add_region(kFirst, 2),
                                      add_region(kFirst + kSlot * 3, 1),  // one slot between
                                      add_region(kFirst + 100_TiB, 1)};
  std::vector<Range> runs;
  for (std::uint32_t i = 0; i < regions.size(); ++i) {
    runs.push_back(add(regions[i].begin + 1_MiB, 1_MiB, HeapId{i}));
  }
  for (std::uint32_t i = 0; i < regions.size(); ++i) {
    expect_found(runs[i], HeapId{i});
    EXPECT_EQ(map_.find(regions[i].begin), std::nullopt) << "another region's run lies before it";
    EXPECT_EQ(map_.find(regions[i].end()), std::nullopt);
  }
}

TEST_F(AddressMapTest, RunsOfRegionsSideBySideAreFound) {
  const Range first = add_region(kFirst, 1), second = add_region(first.end(), 1);
  const Range low = add(first.end() - kShortest, kShortest, kA);
  const Range high = add(second.begin, kShortest, kB);
  expect_found(low, kA);
  expect_found(high, kB);
  map_.remove_region(first);
  expect_found(high, kB);
  EXPECT_EQ(map_.find(low.begin), std::nullopt);
}

TEST_F(AddressMapTest, ARegionThatIsGoneHasNoRunsEvenIfItComesAgain) {
  const Range region = add_region(kFirst, 2), other = add_region(kFirst + 1_TiB, 2);
  const Range theirs = add(other.begin + 1_MiB, 1_MiB, kC);
  const Range across = add(kFirst + kSlot - 1_MiB, 2_MiB, kA);
  add(kFirst + 8_MiB, 3_MiB, kB);
  map_.remove_region(region);
  for (const Address at : {kFirst + 9_MiB, across.begin, across.end() - 1_B}) {
    EXPECT_EQ(map_.find(at), std::nullopt);
  }
  expect_found(theirs, kC);

  // The same addresses, and others, which have the tables that became free.
  for (const Range again : {add_region(kFirst, 2), add_region(kFirst + 2_TiB, 2)}) {
    const Range run = add(again.begin + kSlot - kShortest, kShortest, kB);
    expect_found(run, kB);
    EXPECT_EQ(map_.find(again.begin + 9_MiB), std::nullopt);
    EXPECT_EQ(map_.find(again.begin + kSlot - 1_MiB), std::nullopt);
    const Range second = add(again.begin + kSlot + 8_MiB, kShortest, kA);
    expect_found(second, kA);
    EXPECT_EQ(map_.find(second.begin - 1_B), kB);
  }
  expect_found(theirs, kC);
}

TEST_F(AddressMapTest, ARegionThatNeverHadARunLeavesNothingBehind) {
  map_.remove_region(add_region(kFirst, 2));
  const Range with_run = add_region(kFirst + 1_TiB, 1), without = add_region(kFirst + 2_TiB, 1);
  expect_found(add(with_run.begin + 1_MiB, 1_MiB, kB), kB);
  EXPECT_EQ(map_.find(without.begin + 1_MiB), std::nullopt);
  EXPECT_EQ(map_.find(without.end() - 1_B), std::nullopt);
}

// Runs by where they begin, as in a std::map.
TEST_F(AddressMapTest, AgreesWithAMapOverRandomPrograms) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<Range> regions;
    for (std::uint64_t i = 0; i < 3; ++i) {
      regions.push_back(add_region(kFirst + 1_TiB * (seed * 4 + i), 1 + random() % 3));
    }
    std::map<Address, std::pair<Bytes, HeapId>> runs;
    // Near places that are often the same, at any grain.
    const auto somewhere = [&] {
      const Range region = regions[random() % regions.size()];
      const Address about = region.begin + 64_MiB * (random() % (region.size / 64_MiB));
      return about + kGrain * (random() % (random() % 4 == 0 ? 100'000 : 8'000));
    };
    const auto expected = [&](Address at) -> std::optional<HeapId> {
      const auto after = runs.upper_bound(at);
      if (after == runs.begin()) return std::nullopt;
      const auto& [begin, run] = *std::prev(after);
      for (const Range region : regions) {
        if (region.contains({at, 1_B})) {
          return region.begin <= begin ? std::optional(run.second) : std::nullopt;
        }
      }
      return std::nullopt;
    };
    for (int step = 0; step < 2000; ++step) {
      const Address at = somewhere();
      const auto after = runs.upper_bound(at);
      const bool taken =
          after != runs.begin() && std::prev(after)->first + std::prev(after)->second.first > at;
      if (taken && random() % 3 == 0) {
        const auto gone = std::prev(after);
        map_.remove_run({gone->first, gone->second.first});
        runs.erase(gone);
      } else {
        // Half begin where another ends.
        Range run{at, {}};
        if (taken) run.begin = std::prev(after)->first + std::prev(after)->second.first;
        const auto region = std::find_if(regions.begin(), regions.end(), [&](Range each) {
          return each.contains({run.begin, 1_B});
        });
        if (region == regions.end()) continue;
        Address end = region->end();
        if (after != runs.end()) end = std::min(end, after->first);
        if (end <= run.begin) continue;
        const std::uint64_t most = random() % 8 == 0 ? 400'000 : random() % 2 == 0 ? 40 : 6'000;
        run.size = std::min(kShortest + kGrain * (random() % most), end - run.begin);
        if (run.size < kShortest) continue;
        const HeapId heap{static_cast<std::uint32_t>(random() % 5)};
        map_.add_run(run, heap);
        runs[run.begin] = {run.size, heap};
      }
      std::vector<Address> looked_up;
      for (int i = 0; i < 8; ++i) looked_up.push_back(somewhere());
      const auto near = runs.lower_bound(somewhere());
      if (near != runs.end()) {
        const Address begin = near->first, run_end = begin + near->second.first;
        looked_up.insert(looked_up.end(),
                         {begin - 1_B, begin, begin + kStep, run_end - 1_B, run_end});
      }
      for (const Address address : looked_up) {
        ASSERT_EQ(map_.find(address), expected(address))
            << "at " << address.value << ", step " << step;
      }
    }
    for (const auto& [begin, run] : runs) expect_found({begin, run.first}, run.second);
    for (const Range region : regions) map_.remove_region(region);
    for (const auto& [begin, run] : runs) ASSERT_EQ(map_.find(begin), std::nullopt);
  }
}

// Threads look up runs that live, while runs beside them, in the same steps, come and go, and whole
// regions with them. (The sanitizer for threads sees whether anything else goes wrong.)
class AddressMapThreads : public AddressMapTest {
 protected:
  static constexpr std::uint64_t kPairs = 40;
  static constexpr int kRounds = 400;
  static constexpr HeapId kMine{7};

  // A run that lives, then room for one of another heap, at odd grains: steps are shared.
  void SetUp() override {
    add_region(kFirst, 2);
    std::mt19937_64 random(3);
    Address at = kFirst + kSlot - 8_MiB + kGrain * 5;
    for (std::uint64_t i = 0; i < kPairs; ++i) {
      const Bytes long_run = i % 8 == 3 ? 3_MiB : 0_B;  // longer than what is marked
      lives_.push_back(add(at, kShortest + long_run + kGrain * (random() % 300), kMine));
      const Range room{lives_.back().end(), kShortest + kGrain * (random() % 900)};
      rooms_.push_back(room);
      at = room.end();
    }
  }
  void look_up(std::uint64_t seed, const std::atomic<bool>& done) {
    std::mt19937_64 random(seed);
    while (!done.load(std::memory_order_relaxed)) {
      for (int i = 0; i < 200; ++i) {
        const Range run = lives_[random() % lives_.size()];
        const Bytes offset{random() % run.size.count};
        if (map_.find(run.begin + offset) != kMine) wrong_.fetch_add(1);
        if (map_.find(run.end() - 1_B) != kMine) wrong_.fetch_add(1);
        if (map_.find(run.begin) != kMine) wrong_.fetch_add(1);
        looked_.fetch_add(3, std::memory_order_relaxed);
      }
    }
  }
  // As their page heap does, one after the other.
  void change_runs_beside() {
    std::mt19937_64 random(11);
    std::vector<bool> taken(kPairs);
    for (int i = 0; i < kRounds * 500; ++i) {
      const std::uint64_t which = random() % kPairs;
      if (taken[which]) {
        map_.remove_run(rooms_[which]);
      } else {
        map_.add_run(rooms_[which], HeapId{static_cast<std::uint32_t>(100 + random() % 50)});
      }
      taken[which] = !taken[which];
    }
  }
  // As the page heap of a graph pool that comes and goes.
  void change_regions() {
    for (int i = 0; i < kRounds; ++i) {
      const Range region{kFirst + kSlot * (4 + i % 2), kSlot};
      map_.add_region(region);
      for (std::uint64_t j = 0; j < 8; ++j) {
        const Range run{region.begin + 1_MiB * j + kGrain, 1_MiB};
        map_.add_run(run, kB);
        if (map_.find(run.end() - 1_B) != kB) wrong_.fetch_add(1);
      }
      map_.remove_region(region);
      if (map_.find(region.begin + 2_MiB) != std::nullopt) wrong_.fetch_add(1);
    }
  }

  std::vector<Range> lives_, rooms_;
  std::atomic<std::uint64_t> wrong_{0}, looked_{0};
};

TEST_F(AddressMapThreads, FindLiveRunsWhileRunsBesideThemComeAndGo) {
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    readers.emplace_back([this, seed, &done] { look_up(seed, done); });
  }
  std::thread regions([this] { change_regions(); });
  change_runs_beside();
  regions.join();
  while (looked_.load() < 10'000) std::this_thread::yield();
  done.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong_.load(), 0u);
  for (const Range run : lives_) expect_found(run, kMine);
}

// Nobody's addresses may have any answer that was once right, and none that never was.
TEST_F(AddressMapThreads, NeverFindAHeapThatHasNoRunThereOrBefore) {
  std::atomic<bool> done{false};
  std::thread reader([&] {
    std::mt19937_64 random(5);
    while (!done.load(std::memory_order_relaxed)) {
      const Range room = rooms_[random() % rooms_.size()];
      const std::optional<HeapId> found = map_.find(room.begin + Bytes{random() % room.size.count});
      const bool is_beside = found && found->value >= 100 && found->value < 150;
      if (found != kMine && !is_beside) wrong_.fetch_add(1);
      looked_.fetch_add(1, std::memory_order_relaxed);
    }
  });
  change_runs_beside();
  while (looked_.load() < 10'000) std::this_thread::yield();
  done.store(true);
  reader.join();
  EXPECT_EQ(wrong_.load(), 0u);
}

}  // namespace
}  // namespace weir
