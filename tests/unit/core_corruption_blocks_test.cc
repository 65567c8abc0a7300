// SPDX-License-Identifier: Apache-2.0
// Each invariant of blocks and slabs is broken, one at a time: validate() must name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_corruption_fixture.h"

namespace weir {
namespace {

using test::Corruption;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// The heap of the first stream: three small blocks at the start of its only slab, of which the
// second is cached; behind them, all is free.
class BlockCorruption : public Corruption {
 protected:
  void SetUp() override {
    Corruption::SetUp();
    large_block_ = &block(large_[1]);
    for (void* const at : small_) tiles_.push_back(&block(at));
    tiles_.push_back(tiles_.back()->after);
    ASSERT_EQ(tiles_[0]->before, nullptr);
    ASSERT_EQ(tiles_[1], tiles_[0]->after);
    ASSERT_EQ(tiles_[1]->state, Block::State::cached);
    ASSERT_EQ(tiles_[2], tiles_[1]->after);
    ASSERT_EQ(tiles_[3]->state, Block::State::free);
    ASSERT_EQ(tiles_[3]->after, nullptr);
    ASSERT_EQ(TestAccess::kept(stream_heap(0)), 1u);
  }

  Slab& slab() { return *tiles_[0]->slab; }
  Block& large() { return *large_block_; }
  RunIndex& runs() { return TestAccess::runs(stream_heap(0)); }
  void expect_state_caught(Block& of, Block::State state, const std::string& text) {
    expect_caught(
        of.state, [&](Block::State& s) { s = state; }, text);
  }
  // A live run where none should be.
  void expect_run_caught(Address at, Bytes size, const std::string& text) {
    Block more;
    more.begin = at;
    more.size = more.requested = size;
    more.state = Block::State::live;
    expect_caught_until([&] { runs().add(&more); }, [&] { runs().remove(&more); }, text);
  }
  void expect_removed_run_caught(Block& run, const std::string& text) {
    expect_caught_until([&] { runs().remove(&run); }, [&] { runs().add(&run); }, text);
  }

  Block* large_block_ = nullptr;
  std::vector<Block*> tiles_;  // of the slab
};

TEST_F(BlockCorruption, BlocksHaveTheBytesThatWereAskedFor) {
  const std::string rounded = "heap 0: a block's size is not what was asked for, rounded up";
  expect_caught(large().size, rounded);
  expect_caught(large().requested, rounded);
  expect_caught(tiles_[0]->requested, rounded);
  const std::string recount = "heap 0: its statistics differ from a recount of its blocks";
  expect_caught(large().size, recount);
  expect_caught(tiles_[0]->size, recount);
  for (Block* const block : {&large(), tiles_[2]}) {
    expect_caught(
        block->requested, [](Bytes& bytes) { bytes -= 1_B; }, recount);
    expect_state_caught(*block, Block::State::free, recount);
  }
  expect_removed_run_caught(large(), recount);
  expect_removed_run_caught(*slab().run, recount);
  expect_removed_run_caught(large(), "chunks: bytes are in use that were not given out");
}

TEST_F(BlockCorruption, SizesSuitTheirPlaces) {
  const std::string text = "heap 0: a block's size does not suit its place";
  for (Block* const block : {&large(), tiles_[0], tiles_[1]}) {
    expect_caught(
        block->size, [](Bytes& bytes) { bytes += 1_B; }, text);
  }
  expect_caught(
      large().size, [](Bytes& bytes) { bytes = 4_KiB; }, text);
  expect_caught(
      tiles_[0]->size, [](Bytes& bytes) { bytes = 1_MiB; }, text);
}

TEST_F(BlockCorruption, BlocksAreFoundAtTheirAddresses) {
  const std::string text = "heap 0: a block is not found at its address";
  ASSERT_NE(large().after, nullptr);
  expect_caught(
      large().begin, [&](Address& at) { at = large().after->begin + kGrain; }, text);
  expect_caught(
      tiles_[2]->begin, [&](Address& at) { at = tiles_[0]->begin; }, text);
}

TEST_F(BlockCorruption, TheIndexOfRunsIsChecked) {
  const std::string text = "heap 0: the index of its runs is wrong";
  expect_caught(
      large().begin, [](Address& at) { at = at - kGrain; }, text);
  expect_caught(
      large().before, [&](Block*& before) { before = &large(); }, text);
  expect_caught(
      large().after, [](Block*& after) { after = after->after; }, text);
}

TEST_F(BlockCorruption, NoByteIsGivenOutTwice) {
  const std::string shared = "its bytes are not in use, or not by it alone";
  expect_run_caught(large().begin + 1_MiB, 1_MiB, shared);
  expect_run_caught(slab().run->begin + 1_MiB, 1_MiB, shared);
  expect_run_caught(Address::of(theirs_), 3_MiB, "a byte was given out twice");
  expect_run_caught(Address::of(theirs_), 2_MiB, shared);
  const std::string no_row = "its stitched row is not there, or not its own";
  expect_run_caught(Address::of(stitched_) + 1_MiB, 1_MiB, no_row);
  expect_run_caught(Address{1 << 20}, 1_MiB, no_row);
}

TEST_F(BlockCorruption, WhatIsAtHandIsKeptOnce) {
  StreamHeap& heap = stream_heap(0);
  auto& kept = TestAccess::kept(heap);
  auto& cached = TestAccess::cached(heap);
  const std::string text = "heap 0: a block is cached and not kept, or kept twice, or the reverse";
  expect_caught(
      kept, [](auto& n) { n = 0; }, text);
  expect_state_caught(large(), Block::State::cached, text);
  expect_state_caught(*tiles_[0], Block::State::cached, text);
  expect_state_caught(*tiles_[1], Block::State::live, text);
  expect_state_caught(*tiles_[1], Block::State::free, "a block is cached that it does not");
  expect_caught(
      cached, [&](auto& blocks) { blocks[0] = &large(); }, text);
  const auto keep_another = [&](Block* another) {
    return [&, another] {
      cached[1] = another;
      kept = 2;
    };
  };
  const auto undo = [&] { kept = 1; };
  expect_caught_until(keep_another(tiles_[1]), undo, text);
  Block& theirs = TestAccess::block(stream_heap(1), Address::of(theirs_));
  expect_caught_until(keep_another(&theirs), undo,
                      "heap 0: a block is cached that it does not have");
}

TEST_F(BlockCorruption, AStreamHeapHasItsStreamsTimeline) {
  const std::string text = "heap 0: its timeline is another stream's";
  expect_caught(
      TestAccess::timeline(stream_heap(0)), [](TimelineId& id) { ++id.value; }, text);
  expect_caught(
      TestAccess::stream(stream_heap(0)), [&](Stream& stream) { stream = b_; }, text);
  expect_caught(
      TestAccess::serves(stream_heap(0)), [&](std::uint64_t& serves) { serves = b_.id; }, text);
}

TEST_F(BlockCorruption, SlabsAndTheirRunsKnowEachOther) {
  expect_caught(slab().live, "heap 0: the live bytes of a slab are counted wrong");
  expect_removed_run_caught(*slab().run, "heap 0: a slab is not among its runs");
  const std::string text = "heap 0: slabs: a slab and its run do not know each other";
  expect_caught(
      slab().position, [](std::size_t& position) { ++position; }, text);
  expect_state_caught(*slab().run, Block::State::live, text);
  expect_caught(
      slab().run->size, [](Bytes& size) { size += 2_MiB; }, text);
  Slab another = slab();
  expect_caught(
      slab().run->slab, [&](Slab*& of_run) { of_run = &another; }, text);
}

TEST_F(BlockCorruption, TilesCoverTheirSlab) {
  const std::string text = "heap 0: slabs: the tiles of a slab do not cover it";
  for (Block* const tile : tiles_) {
    expect_caught(tile->size, text);
    expect_caught(
        tile->size, [](Bytes& size) { size -= kGrain; }, text);
    expect_caught(
        tile->before, [&](Block*& before) { before = tile; }, text);
    expect_caught(
        tile->slab, [](Slab*& of_tile) { of_tile = nullptr; }, text);
  }
  expect_caught(
      tiles_[2]->after, [](Block*& after) { after = nullptr; }, text);
  expect_caught(
      tiles_[0]->begin, [](Address& at) { at = at + kGrain; }, text);
}

TEST_F(BlockCorruption, FreeStretchesDoNotTouch) {
  expect_state_caught(*tiles_[2], Block::State::free, "heap 0: slabs: two free stretches touch");
}

TEST_F(BlockCorruption, BytesOfASlabAreCounted) {
  expect_caught(slab().used, "heap 0: slabs: the bytes in use of a slab are counted wrong");
  expect_state_caught(*tiles_[1], Block::State::free,
                      "heap 0: slabs: the bytes in use of a slab are counted wrong");
  std::vector<Block::State> states;
  const Bytes used = slab().used;
  expect_caught_until(
      [&] {
        for (Block* const tile : tiles_) {
          states.push_back(std::exchange(tile->state, Block::State::free));
        }
        slab().used = 0_B;
      },
      [&] {
        for (std::size_t i = 0; i < tiles_.size(); ++i) tiles_[i]->state = states[i];
        slab().used = used;
      },
      "heap 0: slabs: an empty slab is kept");
}

TEST_F(BlockCorruption, StretchesOfASlabNameTheirFirstTiles) {
  const std::string text = "heap 0: slabs: a stretch names another tile than its first";
  const auto stretch_of = [&](const Block* tile) {
    return (tile->begin - slab().run->begin) / Slab::kStretch;
  };
  // Two begin in each of the first two stretches, and none in the others.
  ASSERT_EQ(stretch_of(tiles_[1]), 0u);
  ASSERT_EQ(stretch_of(tiles_[2]), 1u);
  ASSERT_EQ(stretch_of(tiles_[3]), 1u);
  auto& first = slab().first;
  expect_caught(
      first[1], [](Block*& tile) { tile = nullptr; }, text);
  expect_caught(
      first[1], [&](Block*& tile) { tile = tiles_[3]; }, text);
  expect_caught(
      first[1], [&](Block*& tile) { tile = tiles_[0]; }, text);
  expect_caught(
      first[2], [&](Block*& tile) { tile = tiles_[3]; }, text);
  expect_caught(
      first.back(), [&](Block*& tile) { tile = tiles_[2]; }, text);
}

TEST_F(BlockCorruption, FreeStretchesAreListedBySize) {
  Slabs& slabs = TestAccess::slabs(stream_heap(0));
  auto& lists = TestAccess::lists(slabs);
  auto& filled = TestAccess::filled(slabs);
  Block& free = *tiles_[3];
  const auto list =
      static_cast<std::size_t>(std::find(lists.begin(), lists.end(), &free) - lists.begin());
  ASSERT_LT(list, lists.size());
  ASSERT_GT(list, 20u);

  const std::string marked = "heap 0: slabs: a list of free stretches is marked wrong";
  for (const std::size_t of : {list, std::size_t{3}}) {
    expect_caught(
        filled[of / 64], [&](std::uint64_t& bits) { bits ^= std::uint64_t{1} << of % 64; }, marked);
  }
  expect_caught(
      lists[3], [&](Block*& head) { head = &free; }, marked);
  expect_caught(
      lists[list], [](Block*& head) { head = nullptr; },
      "heap 0: slabs: a free stretch is in no list");

  const std::string foreign = "heap 0: slabs: a list of free stretches has one that is not its own";
  expect_caught(
      lists[3], [&](Block*& head) { head = &free; }, foreign);  // of another size
  expect_caught(
      lists[list], [&](Block*& head) { head = tiles_[0]; }, foreign);  // live
  expect_caught(
      free.next, [&](Block*& next) { next = &free; }, foreign);  // a ring
  expect_caught(
      free.previous, [&](Block*& previous) { previous = tiles_[0]; }, foreign);
  expect_caught(
      free.size, [](Bytes& size) { size = 4_KiB; }, foreign);
}

}  // namespace
}  // namespace weir
