// SPDX-License-Identifier: Apache-2.0
// Slabs: small blocks packed together, without a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
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
  Tile* add_slab(Address at) {
    Tile* const run = &runs_.emplace_back();
    run->begin = at;
    run->size = Slab::kSize;
    run->slab = &slabs_.add(run);
    return run;
  }
  SmallTile* allocate(Bytes size) {
    SmallTile* const stretch = slabs_.find(size);
    return stretch == nullptr ? nullptr : slabs_.take(stretch, size);
  }
  void fence(SmallTile* block, Fence fence) { block->uses.get().fences.join(fence); }
  static std::vector<Fence> list(const FenceSet& fences) { return {fences.begin(), fences.end()}; }
  static std::vector<Fence> fences_of(const SmallTile& tile) { return list(tile.uses.fences()); }
  static bool lies_in(const SmallTile* block, const Tile* slab) {
    return Range{slab->begin, Slab::kSize - kGrain}.contains(block->range());
  }

  std::deque<Tile> runs_;
  Slabs slabs_;
};

TEST_F(SlabsTest, WithoutASlabThereIsNoPlace) {
  EXPECT_EQ(slabs_.find(kGrain), nullptr);
  EXPECT_EQ(slabs_.size(), 0u);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

TEST_F(SlabsTest, ABlockIsLiveAndLiesInItsSlab) {
  Tile* const run = add_slab(kFirst);
  EXPECT_EQ(run->slab->run, run);
  EXPECT_EQ(run->slab->range(), run->range());
  SmallTile* const block = allocate(3_KiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->state, BlockState::live);
  EXPECT_EQ(block->size(), 3_KiB);
  EXPECT_EQ(block->slab, run->slab);
  EXPECT_EQ(block->slab->used, 3_KiB);
  EXPECT_EQ(block->begin(), kFirst);
  EXPECT_EQ(slabs_.size(), 1u);
}

TEST_F(SlabsTest, TakesTheSmallestStretchThatFits) {
  add_slab(kFirst);
  SmallTile* const hole = allocate(4_KiB);
  SmallTile* const wall = allocate(4_KiB);
  const Address at = hole->begin();
  ASSERT_EQ(wall->begin(), at + 4_KiB);
  EXPECT_EQ(slabs_.free(hole), nullptr);
  EXPECT_EQ(allocate(2_KiB)->begin(), at);
  EXPECT_EQ(allocate(4_KiB)->begin(), at + 8_KiB);
  EXPECT_EQ(allocate(2_KiB)->begin(), at + 2_KiB);
}

TEST_F(SlabsTest, OfStretchesOfOneSizeTheLowestIsTaken) {
  add_slab(kFirst);
  std::vector<SmallTile*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocate(40_KiB));
  for (const std::size_t i : {5u, 1u, 7u, 3u}) EXPECT_EQ(slabs_.free(blocks[i]), nullptr);
  for (const std::uint64_t i : {1u, 3u, 5u, 7u}) {
    EXPECT_EQ(allocate(40_KiB)->begin(), kFirst + 40_KiB * i);
  }
}

TEST_F(SlabsTest, FreeStretchesSideBySideAreOne) {
  add_slab(kFirst);
  std::vector<SmallTile*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(allocate(5_KiB));
  for (const std::size_t i : {1u, 3u, 2u}) EXPECT_EQ(slabs_.free(blocks[i]), nullptr);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
  EXPECT_EQ(allocate(15_KiB)->begin(), kFirst + 5_KiB);
}

TEST_F(SlabsTest, TwoSlabsSideBySideStayTwo) {
  const Tile* const first = add_slab(kFirst);
  const Tile* const second = add_slab(kFirst + Slab::kSize);
  // Seven of the largest blocks fit in each: no eighth lies across the border.
  int in_first = 0, in_second = 0;
  while (const SmallTile* const block = allocate(Slabs::kLargest)) {
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
  while (const SmallTile* const block = allocate(kGrain)) {
    given += kGrain;
    ASSERT_LE(block->end(), kFirst + (Slab::kSize - kGrain));
  }
  EXPECT_EQ(given, Slab::kSize - kGrain);
}

TEST_F(SlabsTest, FencesOfEveryBlockGoWithTheSlab) {
  Tile* const run = add_slab(kFirst);
  SmallTile *const first = allocate(1_KiB), *const second = allocate(1_KiB);
  fence(first, {kA, {3}});
  fence(second, {kB, {5}});
  EXPECT_EQ(slabs_.free(first), nullptr);
  Tile* const emptied = slabs_.free(second);
  ASSERT_EQ(emptied, run);
  EXPECT_THAT(list(run->uses.fences()), UnorderedElementsAre(Fence{kA, {3}}, Fence{kB, {5}}));
  EXPECT_EQ(slabs_.size(), 0u);
  EXPECT_EQ(slabs_.find(kGrain), nullptr);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

TEST_F(SlabsTest, AFreeStretchCarriesTheFencesOfItsBlocks) {
  add_slab(kFirst);
  std::vector<SmallTile*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(1_KiB));
  fence(blocks[0], {kA, {3}});
  fence(blocks[1], {kB, {5}});
  EXPECT_EQ(slabs_.free(blocks[0]), nullptr);
  EXPECT_THAT(fences_of(*slabs_.find(1_KiB)), UnorderedElementsAre(Fence{kA, {3}}));
  EXPECT_EQ(slabs_.free(blocks[1]), nullptr);
  SmallTile* const stretch = slabs_.find(1_KiB);
  EXPECT_EQ(stretch->size(), 2_KiB);
  EXPECT_THAT(fences_of(*stretch), UnorderedElementsAre(Fence{kA, {3}}, Fence{kB, {5}}));
  EXPECT_THAT(fences_of(*blocks[2]), IsEmpty());
  EXPECT_EQ(slabs_.free(blocks[3]), nullptr);
  EXPECT_THAT(fences_of(*slabs_.find(4_KiB)), IsEmpty());
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

TEST_F(SlabsTest, FencesThatWereNotWaitedForGoWithEveryPartOfTheStretch) {
  const Slab& slab = *add_slab(kFirst)->slab;
  SmallTile *const first = allocate(4_KiB), *const wall = allocate(1_KiB);
  fence(first, {kA, {3}});
  EXPECT_EQ(slabs_.free(first), nullptr);
  SmallTile* const middle = slabs_.take_at(slab, {kFirst + 1_KiB, 1_KiB});
  ASSERT_NE(middle, nullptr);
  EXPECT_EQ(middle->begin(), kFirst + 1_KiB);
  for (const SmallTile* part : {middle->before, middle, middle->after}) {
    EXPECT_THAT(fences_of(*part), UnorderedElementsAre(Fence{kA, {3}}));
  }
  EXPECT_EQ(middle->after->after, wall);
  EXPECT_EQ(slabs_.take_at(slab, {kFirst + 1_KiB, 1_KiB}), nullptr);
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

TEST_F(SlabsTest, FindsTheFirstStretchThatSuits) {
  add_slab(kFirst);
  std::vector<SmallTile*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(allocate(1_KiB));
  fence(blocks[1], {kA, {3}});
  for (const std::size_t i : {1u, 3u}) EXPECT_EQ(slabs_.free(blocks[i]), nullptr);
  const auto carries_none = [](const SmallTile& stretch) { return !stretch.uses; };
  EXPECT_EQ(slabs_.find(1_KiB)->begin(), kFirst + 1_KiB);
  EXPECT_EQ(slabs_.find_if(1_KiB, carries_none)->begin(), kFirst + 3_KiB);
  EXPECT_EQ(slabs_.find_if(2_KiB, carries_none)->begin(), kFirst + 5_KiB);
  EXPECT_EQ(slabs_.find_if(1_KiB, [](const SmallTile&) { return false; }), nullptr);
}

TEST_F(SlabsTest, ASlabThatGoesLeavesItsNeighboursFences) {
  Tile* const first = add_slab(kFirst);
  std::vector<SmallTile*> all{allocate(1_KiB)};
  Tile* const second = add_slab(kFirst + Slab::kSize);
  while (SmallTile* const block = allocate(Slabs::kLargest)) all.push_back(block);
  const auto neighbour = std::find_if(
      all.begin(), all.end(), [&](const SmallTile* block) { return lies_in(block, second); });
  ASSERT_NE(neighbour, all.end());
  fence(*neighbour, {kB, {9}});
  const Address at = (*neighbour)->begin();
  EXPECT_EQ(slabs_.free(*neighbour), nullptr);
  all.erase(neighbour);
  Tile* emptied = nullptr;
  for (SmallTile* const block : all) {
    if (lies_in(block, first)) emptied = slabs_.free(block);
  }
  ASSERT_EQ(emptied, first);
  EXPECT_FALSE(first->uses);
  EXPECT_THAT(fences_of(*second->slab->tile_at(at)), UnorderedElementsAre(Fence{kB, {9}}));
  EXPECT_THAT(slabs_.validate(), IsEmpty());
}

// Tiles of odd sizes, many in a stretch or one over many: each of their addresses finds them.
TEST_F(SlabsTest, EveryAddressOfASlabFindsItsTile) {
  std::mt19937_64 random(3);
  const Slab& slab = *add_slab(kFirst)->slab;
  std::vector<SmallTile*> blocks;
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < 40; ++i) {
      const Bytes size = kGrain * (1 + random() % (random() % 6 == 0 ? 300 : 9));
      if (SmallTile* const block = allocate(size)) blocks.push_back(block);
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (std::size_t left = blocks.size() / 3 + 1; blocks.size() > left; blocks.pop_back()) {
      ASSERT_EQ(slabs_.free(blocks.back()), nullptr);
    }
    Address at = kFirst;
    for (const SmallTile* tile = slab.first[0]; tile != nullptr; tile = tile->after) {
      ASSERT_EQ(tile->begin(), at);
      for (; at < tile->end(); at = at + kGrain) {
        ASSERT_EQ(slab.tile_at(at), tile);
        ASSERT_EQ(slab.tile_at(at + (kGrain - 1_B)), tile);
      }
    }
    ASSERT_EQ(at, kFirst + (Slab::kSize - kGrain));
    ASSERT_EQ(slab.tile_at(at)->after, nullptr);  // the last grain is the last tile's
  }
}

// Blocks, and the fences of those that were freed since their stretch was waited for.
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
    SmallTile* stretch_taken = slabs_.find(size);
    if (stretch_taken == nullptr) {
      add_slab_somewhere();
      free = free_stretches();
      stretch_taken = slabs_.find(size);
    }
    ASSERT_NE(stretch_taken, nullptr);
    // As a stream does that has waited.
    const Range waited = stretch_taken->range();
    std::erase_if(expected_, [&](const Expected& e) { return waited.contains(e.block); });
    stretch_taken->uses.reset();
    SmallTile* const block = slabs_.take(stretch_taken, size);
    ASSERT_EQ(block->size(), size);
    const auto stretch = std::find_if(free.begin(), free.end(),
                                      [&](Range range) { return range.contains(block->range()); });
    ASSERT_NE(stretch, free.end()) << "a block lies on another, or in no slab";
    ASSERT_EQ(stretch->begin, block->begin());
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
    for (const SmallTile* const block : blocks_) used.push_back(block->range());
    std::sort(used.begin(), used.end(), [](Range a, Range b) { return a.begin < b.begin; });
    std::vector<Range> free;
    for (const Tile* const run : held_) {
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
    const auto taken = [&](const Tile* run) { return run->begin == at; };
    while (std::any_of(held_.begin(), held_.end(), taken)) at = at + Slab::kSize;
    held_.push_back(add_slab(at));
  }
  void free() {
    const auto picked = blocks_.begin() + static_cast<long>(random_() % blocks_.size());
    SmallTile* const block = *picked;
    const Range range = block->range();
    blocks_.erase(picked);
    if (random_() % 2 == 0) {
      const Fence fence{TimelineId{random_() % 2 == 0 ? 0u : 1u}, {++sequence_}};
      SlabsTest::fence(block, fence);
      expected_.push_back({range, fence});
    }
    Tile* const emptied = slabs_.free(block);
    const auto slab = std::find_if(held_.begin(), held_.end(),
                                   [&](const Tile* run) { return run->range().contains(range); });
    ASSERT_NE(slab, held_.end());
    const Range whole = (*slab)->range();
    const bool last = std::none_of(blocks_.begin(), blocks_.end(), [&](const SmallTile* other) {
      return whole.contains(other->range());
    });
    ASSERT_EQ(emptied != nullptr, last);
    if (!last) return;
    ++emptied_;
    ASSERT_EQ(emptied, *slab);
    ASSERT_THAT(list(emptied->uses.fences()), testing::UnorderedElementsAreArray(list(on(whole))));
    held_.erase(slab);
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
    for (const SmallTile* const block : blocks_) {
      ASSERT_EQ(block->state, BlockState::live);
      ASSERT_FALSE(block->uses);
      ASSERT_EQ(block->slab->tile_at(block->begin()), block);
    }
    for (const Tile* const run : held_) {
      for (const SmallTile* at = run->slab->first[0]; at != nullptr; at = at->after) {
        ASSERT_THAT(fences_of(*at), testing::UnorderedElementsAreArray(list(on(at->range()))));
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<Tile*> held_;  // slabs
  std::vector<SmallTile*> blocks_;
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
