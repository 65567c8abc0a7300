// Slabs: small blocks packed together, without a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/slabs.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr Address kFirst{1 << 30};
constexpr TimelineId kA{0}, kB{1};

FenceSet set_of(std::initializer_list<Fence> fences) {
  FenceSet set;
  for (const Fence fence : fences) set.join(fence);
  return set;
}

TEST(Slabs, WithoutASlabThereIsNoPlace) {
  Slabs slabs;
  EXPECT_EQ(slabs.allocate(kGrain), std::nullopt);
  EXPECT_THAT(slabs.slabs(), IsEmpty());
}

TEST(Slabs, TakesTheSmallestStretchThatFits) {
  Slabs slabs;
  slabs.add({kFirst, Slabs::kSlab});
  const Address hole = *slabs.allocate(4_KiB);
  const Address wall = *slabs.allocate(4_KiB);
  ASSERT_EQ(wall, hole + 4_KiB);
  EXPECT_EQ(slabs.free({hole, 4_KiB}, {}), std::nullopt);
  EXPECT_EQ(slabs.allocate(2_KiB), hole);
  EXPECT_EQ(slabs.allocate(4_KiB), wall + 4_KiB);
  EXPECT_EQ(slabs.allocate(2_KiB), hole + 2_KiB);
}

TEST(Slabs, TwoSlabsSideBySideStayTwo) {
  Slabs slabs;
  slabs.add({kFirst, Slabs::kSlab});
  slabs.add({kFirst + Slabs::kSlab, Slabs::kSlab});
  EXPECT_THAT(slabs.slabs(),
              ElementsAre(Range{kFirst, Slabs::kSlab}, Range{kFirst + Slabs::kSlab, Slabs::kSlab}));
  // Seven of the largest blocks fit in each: no eighth lies across the border.
  std::vector<Range> blocks;
  while (const std::optional<Address> at = slabs.allocate(Slabs::kLargest)) {
    blocks.push_back({*at, Slabs::kLargest});
  }
  EXPECT_EQ(blocks.size(), 14u);
  EXPECT_THAT(slabs.validate(blocks), IsEmpty());
}

TEST(Slabs, TheLastGrainOfASlabIsNeverGivenOut) {
  Slabs slabs;
  slabs.add({kFirst, Slabs::kSlab});
  Bytes given;
  while (const std::optional<Address> at = slabs.allocate(kGrain)) {
    given += kGrain;
    ASSERT_LE(at->value + kGrain.count, (kFirst + Slabs::kSlab - kGrain).value);
  }
  EXPECT_EQ(given, Slabs::kSlab - kGrain);
}

TEST(Slabs, FencesOfEveryBlockGoWithTheSlab) {
  Slabs slabs;
  slabs.add({kFirst, Slabs::kSlab});
  const Range first{*slabs.allocate(1_KiB), 1_KiB}, second{*slabs.allocate(1_KiB), 1_KiB};
  EXPECT_EQ(slabs.free(first, set_of({{kA, {3}}})), std::nullopt);
  const std::optional<Slabs::Emptied> emptied = slabs.free(second, set_of({{kB, {5}}}));
  ASSERT_TRUE(emptied.has_value());
  EXPECT_EQ(emptied->slab, (Range{kFirst, Slabs::kSlab}));
  EXPECT_THAT(std::vector<Fence>(emptied->fences.begin(), emptied->fences.end()),
              UnorderedElementsAre(Fence{kA, {3}}, Fence{kB, {5}}));
  EXPECT_FALSE(slabs.has_fences());
  EXPECT_EQ(slabs.allocate(kGrain), std::nullopt);
}

TEST(Slabs, FencesStayWithTheBytesUntilTheyAreForgotten) {
  Slabs slabs;
  slabs.add({kFirst, Slabs::kSlab});
  const Range fenced{*slabs.allocate(1_KiB), 1_KiB}, other{*slabs.allocate(1_KiB), 1_KiB};
  EXPECT_EQ(slabs.free(fenced, set_of({{kA, {3}}})), std::nullopt);
  FenceSet on_fenced, on_other;
  slabs.collect(fenced, on_fenced);
  slabs.collect(other, on_other);
  EXPECT_EQ(on_fenced, set_of({{kA, {3}}}));
  EXPECT_TRUE(on_other.empty());
  slabs.forget_fences_if([](Fence fence) { return fence.timeline == kB; });
  EXPECT_TRUE(slabs.has_fences());
  slabs.forget_fences_if([](Fence fence) { return fence.timeline == kA; });
  EXPECT_FALSE(slabs.has_fences());
}

TEST(Slabs, ASlabThatGoesLeavesItsNeighboursFences) {
  Slabs slabs;
  slabs.add({kFirst, Slabs::kSlab});
  const Range mine{*slabs.allocate(1_KiB), 1_KiB};
  slabs.add({kFirst + Slabs::kSlab, Slabs::kSlab});
  std::vector<Range> all{mine};
  while (const std::optional<Address> at = slabs.allocate(Slabs::kLargest)) {
    all.push_back({*at, Slabs::kLargest});
  }
  const auto neighbour = std::find_if(
      all.begin(), all.end(), [](Range block) { return block.begin >= kFirst + Slabs::kSlab; });
  ASSERT_NE(neighbour, all.end());
  const Range fenced = *neighbour;
  all.erase(neighbour);
  EXPECT_EQ(slabs.free(fenced, set_of({{kB, {9}}})), std::nullopt);
  std::optional<Slabs::Emptied> emptied;
  for (const Range block : all) {
    if (block.begin < kFirst + Slabs::kSlab) emptied = slabs.free(block, {});
  }
  ASSERT_TRUE(emptied.has_value());
  EXPECT_EQ(emptied->slab.begin, kFirst);
  EXPECT_TRUE(emptied->fences.empty());
  EXPECT_TRUE(slabs.has_fences());
}

// Blocks, and for each grain the latest fence of each of two timelines since it was given out last.
class SlabsProgram {
 public:
  explicit SlabsProgram(std::uint64_t seed) : random_(seed) {}

  void step() {
    if (blocks_.empty() || random_() % 5 < 3) {
      allocate();
    } else {
      free();
    }
    check();
  }
  std::size_t emptied() const { return emptied_; }

 private:
  void allocate() {
    const Bytes size = kGrain * (1 + random_() % (random_() % 4 == 0 ? 512 : 8));
    std::optional<Address> at = slabs_.allocate(size);
    if (!at) {
      add_slab();
      at = slabs_.allocate(size);
    }
    ASSERT_TRUE(at.has_value());
    const Range block{*at, size};
    for (const Range other : blocks_) {
      ASSERT_TRUE(other.end() <= block.begin || block.end() <= other.begin) << "blocks overlap";
    }
    const auto in_slab = [&](Address slab) {
      return Range{slab, Slabs::kSlab - kGrain}.contains(block);
    };
    ASSERT_TRUE(std::any_of(held_.begin(), held_.end(), in_slab));
    blocks_.push_back(block);
  }
  // The lowest place without one: often beside another.
  void add_slab() {
    Address at = kFirst;
    while (std::find(held_.begin(), held_.end(), at) != held_.end()) at = at + Slabs::kSlab;
    held_.push_back(at);
    slabs_.add({at, Slabs::kSlab});
  }
  void free() {
    const auto picked = blocks_.begin() + static_cast<long>(random_() % blocks_.size());
    const Range block = *picked;
    blocks_.erase(picked);
    FenceSet fences;
    if (random_() % 2 == 0) fences = set_of({{TimelineId{random_() % 2 ? 1u : 0u}, {++sequence_}}});
    for (const Fence fence : fences) expected_.push_back({block, fence});

    const std::optional<Slabs::Emptied> emptied = slabs_.free(block, fences);
    const Address slab{kFirst.value + round_down(block.begin - kFirst, Slabs::kSlab).count};
    const Range whole{slab, Slabs::kSlab};
    const bool last = std::none_of(blocks_.begin(), blocks_.end(),
                                   [&](Range other) { return whole.contains(other); });
    ASSERT_EQ(emptied.has_value(), last);
    if (!last) return;
    ++emptied_;
    ASSERT_EQ(emptied->slab, whole);
    const FenceSet all = on(whole);
    for (const Fence fence : all) {
      ASSERT_NE(std::find(emptied->fences.begin(), emptied->fences.end(), fence),
                emptied->fences.end());
    }
    ASSERT_EQ(emptied->fences.size(), all.size());
    std::erase(held_, slab);
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
    std::vector<Range> sorted = blocks_;
    std::sort(sorted.begin(), sorted.end(), [](Range a, Range b) { return a.begin < b.begin; });
    ASSERT_THAT(slabs_.validate(sorted), IsEmpty());
    ASSERT_EQ(slabs_.slabs().size(), held_.size());
    for (const Range block : blocks_) {
      FenceSet actual;
      slabs_.collect(block, actual);
      ASSERT_EQ(actual.size(), on(block).size());
    }
  }

  struct Expected {
    Range block;
    Fence fence;
  };
  std::mt19937_64 random_;
  Slabs slabs_;
  std::vector<Address> held_;
  std::vector<Range> blocks_;
  std::vector<Expected> expected_;
  std::uint64_t sequence_ = 0;
  std::size_t emptied_ = 0;
};

TEST(Slabs, AgreeWithAListOfBlocksOverRandomPrograms) {
  std::size_t emptied = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SlabsProgram program(seed);
    for (int step = 0; step < 600; ++step) {
      program.step();
      if (testing::Test::HasFatalFailure()) return;
    }
    emptied += program.emptied();
  }
  EXPECT_GT(emptied, 5u);
}

}  // namespace
}  // namespace weir
