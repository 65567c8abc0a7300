// SPDX-License-Identifier: Apache-2.0
// BlockPool: records of blocks, and who uses them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "core/heap/block.h"

namespace weir {
namespace {

using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

TEST(BlockPool, RecordsAreApartAndStayWhereTheyAre) {
  BlockPool pool;
  std::vector<Block*> blocks;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    blocks.push_back(pool.take());
    blocks.back()->begin = Address{i + 1};
  }
  EXPECT_THAT(std::set<Block*>(blocks.begin(), blocks.end()), SizeIs(1000));
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(blocks[i]->begin, Address{i + 1});
}

TEST(BlockPool, ARecordThatWentBackComesAgainAsNew) {
  BlockPool pool;
  Block* const block = pool.take();
  Block* const other = pool.take();
  *block = {.begin = Address{4096},
            .size = 1_KiB,
            .requested = 1000_B,
            .uses = nullptr,
            .name = 7,
            .before = other,
            .after = other,
            .state = Block::State::live};
  pool.give_back(block);
  Block* const again = pool.take();
  ASSERT_EQ(again, block);
  EXPECT_EQ(again->range(), (Range{Address{}, 0_B}));
  EXPECT_EQ(again->requested, 0_B);
  EXPECT_EQ(again->name, 0u);
  EXPECT_EQ(again->state, Block::State::free);
  EXPECT_EQ(again->slab, nullptr);
  const std::vector<Block*> links{again->before, again->after};
  EXPECT_THAT(links, Each(nullptr));
}

TEST(BlockPool, TakesNothingMoreFromTheSystemForWhatWentBack) {
  BlockPool pool;
  std::set<Block*> all;
  for (int i = 0; i < 300; ++i) all.insert(pool.take());
  for (Block* const block : all) pool.give_back(block);
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(all.contains(pool.take()));
}

TEST(BlockPool, ABlockHasItsUsesUntilTheyAreDropped) {
  BlockPool pool;
  Block& block = *pool.take();
  EXPECT_EQ(block.uses, nullptr);
  BlockUses& uses = pool.uses(block);
  EXPECT_EQ(block.uses, &uses);
  EXPECT_EQ(&pool.uses(block), &uses);
  pool.drop_uses(block);
  EXPECT_EQ(block.uses, nullptr);
  pool.drop_uses(block);
  EXPECT_EQ(block.uses, nullptr);
}

TEST(BlockPool, UsesOfTwoBlocksAreApartAndNextOnesStartEmpty) {
  BlockPool pool;
  Block &first = *pool.take(), &second = *pool.take();
  pool.uses(first).fences.join(Fence{TimelineId{1}, {5}});
  pool.uses(first).users.push_back(TimelineId{2});
  EXPECT_TRUE(pool.uses(second).fences.empty());
  EXPECT_THAT(pool.uses(second).users, IsEmpty());
  BlockUses* const dropped = first.uses;
  pool.drop_uses(first);
  Block& third = *pool.take();
  EXPECT_EQ(&pool.uses(third), dropped);
  EXPECT_TRUE(third.uses->fences.empty());
  EXPECT_THAT(third.uses->users, IsEmpty());
}

}  // namespace
}  // namespace weir
