// SPDX-License-Identifier: Apache-2.0
// Slabs: small blocks packed together, without a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/heap/slabs.h"

namespace weir {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr Address kFirst{1 << 30};
constexpr TimelineId kA{0}, kB{1};

class SlabsTest : public testing::Test {
 protected:
  Block* add_slab(Address at) {
    Block* const run = pool_.take();
    run->begin = at;
    run->size = Slab::kSize;
    run->state = Block::State::live;
    slabs_.add(run);
    return run;
  }
  void fence(Block* block, Fence fence) { pool_.uses(*block).fences.join(fence); }
  FenceSet fences_on(Range range) const {
    FenceSet fences;
    slabs_.collect(range, fences);
    return fences;
  }
  static std::vector<Fence> list(const FenceSet& fences) { return {fences.begin(), fences.end()}; }
  static bool lies_in(const Block* block, const Block* slab) {
    return Range{slab->begin, Slab::kSize - kGrain}.contains(block->range());
  }

  BlockPool pool_;
  Slabs slabs_{pool_};
};

TEST_F(SlabsTest, WithoutASlabThereIsNoPlace) {
  EXPECT_EQ(slabs_.allocate(kGrain), nullptr);
  EXPECT_EQ(slabs_.size(), 0u);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

TEST_F(SlabsTest, ABlockIsLiveAndLiesInItsSlab) {
  Block* const run = add_slab(kFirst);
  EXPECT_EQ(run->state, Block::State::slab);
  ASSERT_NE(run->slab, nullptr);
  EXPECT_EQ(run->slab->run, run);
  Block* const block = slabs_.allocate(3_KiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->state, Block::State::live);
  EXPECT_EQ(block->size, 3_KiB);
  EXPECT_EQ(block->slab, run->slab);
  EXPECT_EQ(block->slab->used, 3_KiB);
  EXPECT_EQ(block->begin, kFirst);
  EXPECT_EQ(slabs_.size(), 1u);
}

TEST_F(SlabsTest, TakesTheSmallestStretchThatFits) {
  add_slab(kFirst);
  Block* const hole = slabs_.allocate(4_KiB);
  Block* const wall = slabs_.allocate(4_KiB);
  const Address at = hole->begin;
  ASSERT_EQ(wall->begin, at + 4_KiB);
  EXPECT_EQ(slabs_.free(hole), std::nullopt);
  EXPECT_EQ(slabs_.allocate(2_KiB)->begin, at);
  EXPECT_EQ(slabs_.allocate(4_KiB)->begin, at + 8_KiB);
  EXPECT_EQ(slabs_.allocate(2_KiB)->begin, at + 2_KiB);
}

TEST_F(SlabsTest, OfStretchesOfOneSizeTheLowestIsTaken) {
  add_slab(kFirst);
  std::vector<Block*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(slabs_.allocate(40_KiB));
  for (const std::size_t i : {5u, 1u, 7u, 3u}) EXPECT_EQ(slabs_.free(blocks[i]), std::nullopt);
  for (const std::uint64_t i : {1u, 3u, 5u, 7u}) {
    EXPECT_EQ(slabs_.allocate(40_KiB)->begin, kFirst + 40_KiB * i);
  }
}

TEST_F(SlabsTest, FreeStretchesSideBySideAreOne) {
  add_slab(kFirst);
  std::vector<Block*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(slabs_.allocate(5_KiB));
  for (const std::size_t i : {1u, 3u, 2u}) EXPECT_EQ(slabs_.free(blocks[i]), std::nullopt);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
  EXPECT_EQ(slabs_.allocate(15_KiB)->begin, kFirst + 5_KiB);
}

TEST_F(SlabsTest, TwoSlabsSideBySideStayTwo) {
  const Block* const first = add_slab(kFirst);
  const Block* const second = add_slab(kFirst + Slab::kSize);
  // Seven of the largest blocks fit in each: no eighth lies across the border.
  int in_first = 0, in_second = 0;
  while (const Block* const block = slabs_.allocate(Slabs::kLargest)) {
    in_first += lies_in(block, first);
    in_second += lies_in(block, second);
  }
  EXPECT_EQ(in_first, 7);
  EXPECT_EQ(in_second, 7);
  EXPECT_EQ(slabs_.size(), 2u);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

TEST_F(SlabsTest, TheLastGrainOfASlabIsNeverGivenOut) {
  add_slab(kFirst);
  Bytes given;
  while (const Block* const block = slabs_.allocate(kGrain)) {
    given += kGrain;
    ASSERT_LE(block->end(), kFirst + (Slab::kSize - kGrain));
  }
  EXPECT_EQ(given, Slab::kSize - kGrain);
}

TEST_F(SlabsTest, FencesOfEveryBlockGoWithTheSlab) {
  Block* const run = add_slab(kFirst);
  Block *const first = slabs_.allocate(1_KiB), *const second = slabs_.allocate(1_KiB);
  fence(first, {kA, {3}});
  fence(second, {kB, {5}});
  EXPECT_EQ(slabs_.free(first), std::nullopt);
  const std::optional<Slabs::Emptied> emptied = slabs_.free(second);
  ASSERT_TRUE(emptied.has_value());
  EXPECT_EQ(emptied->run, run);
  EXPECT_EQ(run->slab, nullptr);
  EXPECT_EQ(run->range(), (Range{kFirst, Slab::kSize}));
  EXPECT_THAT(list(emptied->fences), UnorderedElementsAre(Fence{kA, {3}}, Fence{kB, {5}}));
  EXPECT_FALSE(slabs_.has_fences());
  EXPECT_EQ(slabs_.size(), 0u);
  EXPECT_EQ(slabs_.allocate(kGrain), nullptr);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

TEST_F(SlabsTest, FencesStayWithTheBytesUntilTheyAreForgotten) {
  add_slab(kFirst);
  Block *const fenced = slabs_.allocate(1_KiB), *const other = slabs_.allocate(1_KiB);
  const Range bytes = fenced->range();
  fence(fenced, {kA, {3}});
  EXPECT_FALSE(slabs_.has_fences());
  EXPECT_EQ(slabs_.free(fenced), std::nullopt);
  EXPECT_THAT(list(fences_on(bytes)), UnorderedElementsAre(Fence{kA, {3}}));
  EXPECT_TRUE(fences_on(other->range()).empty());
  slabs_.forget_fences_if([](Fence fence) { return fence.timeline == kB; });
  EXPECT_TRUE(slabs_.has_fences());
  slabs_.forget_fences_if([](Fence fence) { return fence.timeline == kA; });
  EXPECT_FALSE(slabs_.has_fences());
}

TEST_F(SlabsTest, ANextBlockInABlocksPlaceHasNoUsesOfIt) {
  add_slab(kFirst);
  Block *const first = slabs_.allocate(1_KiB), *const wall = slabs_.allocate(1_KiB);
  fence(first, {kA, {3}});
  EXPECT_EQ(slabs_.free(first), std::nullopt);
  Block* const next = slabs_.allocate(1_KiB);
  EXPECT_EQ(next->begin, kFirst);
  EXPECT_EQ(next->uses, nullptr);
  EXPECT_EQ(slabs_.free(wall), std::nullopt);
}

TEST_F(SlabsTest, ASlabThatGoesLeavesItsNeighboursFences) {
  Block* const first = add_slab(kFirst);
  std::vector<Block*> all{slabs_.allocate(1_KiB)};
  Block* const second = add_slab(kFirst + Slab::kSize);
  while (Block* const block = slabs_.allocate(Slabs::kLargest)) all.push_back(block);
  const auto neighbour = std::find_if(all.begin(), all.end(),
                                      [&](const Block* block) { return lies_in(block, second); });
  ASSERT_NE(neighbour, all.end());
  fence(*neighbour, {kB, {9}});
  EXPECT_EQ(slabs_.free(*neighbour), std::nullopt);
  all.erase(neighbour);
  std::optional<Slabs::Emptied> emptied;
  for (Block* const block : all) {
    if (lies_in(block, first)) emptied = slabs_.free(block);
  }
  ASSERT_TRUE(emptied.has_value());
  EXPECT_EQ(emptied->run, first);
  EXPECT_TRUE(emptied->fences.empty());
  EXPECT_TRUE(slabs_.has_fences());
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

// Tiles of odd sizes, many in a stretch or one over many: each of their addresses finds them.
TEST_F(SlabsTest, EveryAddressOfASlabFindsItsTile) {
  std::mt19937_64 random(3);
  const Slab& slab = *add_slab(kFirst)->slab;
  std::vector<Block*> blocks;
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < 40; ++i) {
      const Bytes size = kGrain * (1 + random() % (random() % 6 == 0 ? 300 : 9));
      if (Block* const block = slabs_.allocate(size)) blocks.push_back(block);
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (std::size_t left = blocks.size() / 3 + 1; blocks.size() > left; blocks.pop_back()) {
      ASSERT_EQ(slabs_.free(blocks.back()), std::nullopt);
    }
    Address at = kFirst;
    for (const Block* tile = slab.first[0]; tile != nullptr; tile = tile->after) {
      ASSERT_EQ(tile->begin, at);
      for (; at < tile->end(); at = at + kGrain) {
        ASSERT_EQ(slab.tile_at(at), tile);
        ASSERT_EQ(slab.tile_at(at + (kGrain - 1_B)), tile);
      }
    }
    ASSERT_EQ(at, kFirst + (Slab::kSize - kGrain));
    ASSERT_EQ(slab.tile_at(at)->after, nullptr);  // the last grain is the last tile's
  }
}

// Blocks, and for each grain the latest fence of each of two timelines since it was given out last.
class SlabsProgram : public SlabsTest {
 protected:
  void start(std::uint64_t seed) { random_.seed(seed); }
  void step() {
    if (blocks_.empty() || random_() % 5 < 3) {
      allocate();
    } else {
      free();
    }
    check();
  }
  std::size_t emptied() const { return emptied_; }
  std::size_t compared() const { return compared_; }

 private:
  struct Expected {
    Range block;
    Fence fence;
  };

  void allocate() {
    const Bytes size = kGrain * (1 + random_() % (random_() % 4 == 0 ? 512 : 8));
    std::vector<Range> free = free_stretches();
    Block* block = slabs_.allocate(size);
    if (block == nullptr) {
      add_slab_somewhere();
      free = free_stretches();
      block = slabs_.allocate(size);
    }
    ASSERT_NE(block, nullptr);
    ASSERT_EQ(block->size, size);
    const auto stretch = std::find_if(free.begin(), free.end(),
                                      [&](Range range) { return range.contains(block->range()); });
    ASSERT_NE(stretch, free.end()) << "a block lies on another, or in no slab";
    ASSERT_EQ(stretch->begin, block->begin);
    expect_good_fit(size, stretch->size, free);
    blocks_.push_back(block);
  }
  // The smallest that fits, or one that is a step larger.
  void expect_good_fit(Bytes size, Bytes taken, const std::vector<Range>& free) {
    Bytes smallest = taken;
    for (const Range range : free) {
      if (range.size >= size) smallest = std::min(smallest, range.size);
    }
    const Bytes step = smallest / 16;
    const auto similar = std::count_if(free.begin(), free.end(), [&](Range range) {
      return range.size + step >= smallest && range.size <= smallest + step;
    });
    if (similar > 8) return;  // not all of them are looked at
    ++compared_;
    ASSERT_LE(taken, smallest < kGrain * 16 ? smallest : smallest + step);
  }
  std::vector<Range> free_stretches() const {
    std::vector<Range> used;
    for (const Block* const block : blocks_) used.push_back(block->range());
    std::sort(used.begin(), used.end(), [](Range a, Range b) { return a.begin < b.begin; });
    std::vector<Range> free;
    for (const Block* const run : held_) {
      Address at = run->begin;
      const Address end = at + (Slab::kSize - kGrain);
      for (const Range block : used) {
        if (block.begin < at || block.begin >= end) continue;
        if (block.begin > at) free.push_back({at, block.begin - at});
        at = block.end();
      }
      if (at < end) free.push_back({at, end - at});
    }
    return free;
  }
  // The lowest place without one: often beside another.
  void add_slab_somewhere() {
    Address at = kFirst;
    const auto taken = [&](const Block* run) { return run->begin == at; };
    while (std::any_of(held_.begin(), held_.end(), taken)) at = at + Slab::kSize;
    held_.push_back(add_slab(at));
  }
  void free() {
    const auto picked = blocks_.begin() + static_cast<long>(random_() % blocks_.size());
    Block* const block = *picked;
    const Range range = block->range();
    blocks_.erase(picked);
    if (random_() % 2 == 0) {
      const Fence fence{TimelineId{random_() % 2 == 0 ? 0u : 1u}, {++sequence_}};
      SlabsTest::fence(block, fence);
      expected_.push_back({range, fence});
    }
    const std::optional<Slabs::Emptied> emptied = slabs_.free(block);
    const auto slab = std::find_if(held_.begin(), held_.end(),
                                   [&](const Block* run) { return run->range().contains(range); });
    ASSERT_NE(slab, held_.end());
    const Range whole = (*slab)->range();
    const bool last = std::none_of(blocks_.begin(), blocks_.end(), [&](const Block* other) {
      return whole.contains(other->range());
    });
    ASSERT_EQ(emptied.has_value(), last);
    if (!last) return;
    ++emptied_;
    ASSERT_EQ(emptied->run, *slab);
    ASSERT_THAT(list(emptied->fences), testing::UnorderedElementsAreArray(list(on(whole))));
    held_.erase(slab);
    pool_.give_back(emptied->run);
    std::erase_if(expected_, [&](const Expected& e) { return whole.contains(e.block); });
  }
  FenceSet on(Range range) const {
    FenceSet set;
    for (const Expected& e : expected_) {
      if (e.block.begin < range.end() && range.begin < e.block.end()) set.join(e.fence);
    }
    return set;
  }
  void check() {
    ASSERT_THAT(slabs_.validate(), IsEmpty());
    ASSERT_EQ(slabs_.size(), held_.size());
    for (const Block* const block : blocks_) {
      ASSERT_EQ(block->state, Block::State::live);
      ASSERT_EQ(block->slab->tile_at(block->begin), block);
      ASSERT_THAT(list(fences_on(block->range())),
                  testing::UnorderedElementsAreArray(list(on(block->range()))));
    }
  }

  std::mt19937_64 random_;
  std::vector<Block*> held_;  // slabs
  std::vector<Block*> blocks_;
  std::vector<Expected> expected_;
  std::uint64_t sequence_ = 0;
  std::size_t emptied_ = 0, compared_ = 0;
};

class SlabsPrograms : public SlabsProgram, public testing::WithParamInterface<std::uint64_t> {};

TEST_P(SlabsPrograms, AgreeWithAListOfBlocks) {
  start(GetParam());
  for (int step = 0; step < 600 && !HasFatalFailure(); ++step) SlabsProgram::step();
  EXPECT_GT(emptied() + compared(), 200u);
}
INSTANTIATE_TEST_SUITE_P(Seeds, SlabsPrograms, testing::Range<std::uint64_t>(0, 6));

}  // namespace
}  // namespace weir
