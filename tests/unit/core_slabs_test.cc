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

constexpr Address kFirst{1 << 30};

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

  std::deque<Tile> runs_;
  Slabs slabs_;
};

TEST_F(SlabsTest, OfStretchesOfOneSizeTheLowestIsTaken) {
  add_slab(kFirst);
  std::vector<SmallTile*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocate(40_KiB));
  for (const std::size_t i : {5u, 1u, 7u, 3u}) EXPECT_EQ(slabs_.free(blocks[i]), nullptr);
  for (const std::uint64_t i : {1u, 3u, 5u, 7u}) {
    EXPECT_EQ(allocate(40_KiB)->begin(), kFirst + 40_KiB * i);
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
