// SPDX-License-Identifier: Apache-2.0
// Going back to an earlier state of a pool, as PyTorch's trees of graphs do.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "tests/unit/graph_pool_fixture.h"

namespace weir::test {
namespace {

class GraphPoolRestore : public GraphPools {
 protected:
  void TearDown() override {
    pool_.reset();
    GraphPools::TearDown();
  }
  void restore(const std::vector<PlacedBlock>& state) {
    const Status restored = pool().restore(state);
    ASSERT_TRUE(restored.ok()) << restored.error().message();
    EXPECT_THAT(heap_->validate(), testing::IsEmpty());
    EXPECT_EQ(pool().blocks().size(), state.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(pool().blocks()[i].address, state[i].address);
      EXPECT_EQ(pool().blocks()[i].bytes, state[i].bytes);
      EXPECT_EQ(pool().blocks()[i].requested, state[i].requested);
      EXPECT_EQ(pool().blocks()[i].run, state[i].run);
    }
  }
  void free_all() {
    const std::vector<PlacedBlock> live = pool().blocks();
    for (const PlacedBlock& block : live) {
      EXPECT_TRUE(heap_->deallocate(block.address.pointer()).ok());
    }
  }

  GraphPool& pool() { return *pool_; }

 private:
  std::unique_ptr<GraphPool> pool_ = std::make_unique<GraphPool>(*heap_);
};

TEST_F(GraphPoolRestore, BlocksListsWhatIsLiveAndWhereItLies) {
  PoolBinding binding = warm_up(pool(), a_);
  void* const large = allocate(3_MiB, a_);
  void* const small = allocate(1000_B, a_);
  void* const other = heap_->allocate(4_MiB, b_).value();  // not the pool's
  const std::vector<PlacedBlock> blocks = pool().blocks();
  ASSERT_EQ(blocks.size(), 2u);
  const bool large_first = large < small;
  const PlacedBlock& first = blocks[large_first ? 0 : 1];
  const PlacedBlock& second = blocks[large_first ? 1 : 0];
  EXPECT_EQ(first.address, Address::of(large));
  EXPECT_EQ(first.run, Address::of(large));
  EXPECT_EQ(first.stream, a_);
  EXPECT_EQ(second.address, Address::of(small));
  EXPECT_EQ(second.bytes, 1024_B);
  EXPECT_EQ(second.requested, 1000_B);
  EXPECT_LE(second.run, second.address);
  free(large);
  free(small);
  EXPECT_TRUE(heap_->deallocate(other).ok());
  EXPECT_THAT(pool().blocks(), testing::IsEmpty());
}

// A pool of 96 MiB that is full, with a block of 32 MiB in pieces. It lies in a row of just its
// size.
class GraphPoolRestoreOfPieces : public GraphPoolRestore {
 protected:
  void SetUp() override {
    PoolBinding binding = warm_up(*small_, a_);
    for (void*& part : parts_) part = allocate(16_MiB, a_);
    free(std::exchange(parts_[1], nullptr));
    free(std::exchange(parts_[3], nullptr));
    pieces_ = written(32_MiB, a_);
    binding.close();
    ASSERT_GT(device_.live().mappings, device_.live().handles) << "it is in one piece";
    state_ = small_->blocks();
    free(pieces_);
  }
  void TearDown() override {
    for (void* const part : parts_) {
      if (part != nullptr) free(part);
    }
    free(pieces_);
    small_.reset();
    GraphPoolRestore::TearDown();
  }
  void restore_again() {
    const Status restored = small_->restore(state_);
    ASSERT_TRUE(restored.ok()) << restored.error().message();
    EXPECT_EQ(small_->blocks().size(), state_.size());
    EXPECT_THAT(heap_->validate(), testing::IsEmpty());
    write(a_, pieces_);
  }
  // The row goes with the first of its pages; the others may become the device heap's.
  void give_back(Bytes bytes) {
    device_.finish();
    const Bytes held{heap_->statistics().reserved_bytes.current};
    ASSERT_TRUE(heap_->trim(held - bytes).ok());
    ASSERT_LE(device_.live().mappings, device_.live().handles) << "the row is still there";
  }

  std::optional<GraphPool> small_{std::in_place, *heap_, GraphPoolOptions{.limit = 96_MiB}};
  std::array<void*, 6> parts_{};
  void* pieces_ = nullptr;
  std::vector<PlacedBlock> state_;
};

// PyTorch's own allocator keeps the memory of a pool that a program has, whatever is trimmed.
TEST_F(GraphPoolRestoreOfPieces, ABlockIsLiveAgainAtItsPlace) {
  restore_again();
  // No block has more than the row.
  std::vector<PlacedBlock> larger = state_;
  for (PlacedBlock& block : larger) {
    if (block.bytes == 32_MiB) block.requested = block.bytes = block.run_bytes = 32_MiB + 2_MiB;
  }
  expect_error(small_->restore(larger), ErrorCode::invalid_argument, "is no block");
}

TEST_F(GraphPoolRestoreOfPieces, ItsRowIsMadeAgainIfItHasGone) {
  for (const Bytes bytes : {32_MiB, 16_MiB}) {
    SCOPED_TRACE(bytes.count);
    give_back(
        bytes);  // of the row, whose other pages are idle then, and the pool is full with them
    restore_again();
    if (bytes == 32_MiB) free(pieces_);
  }
}

TEST_F(GraphPoolRestoreOfPieces, NoBlockGoesBeyondTheAddressesOfRows) {
  give_back(32_MiB);
  for (const Bytes beyond : {0_B, 1_MiB, 2_MiB, 4_MiB, Bytes{std::uint64_t{1} << 62}}) {
    SCOPED_TRACE(beyond.count);
    std::vector<PlacedBlock> larger = state_;
    for (PlacedBlock& block : larger) {
      if (block.bytes != 32_MiB) continue;
      block.bytes = Bytes{~block.address.value} - beyond;
      block.bytes = block.requested = block.run_bytes = block.bytes - block.bytes % 2_MiB;
    }
    expect_error(small_->restore(larger), ErrorCode::invalid_argument, "is no block");
  }
  restore_again();
}

TEST_F(GraphPoolRestoreOfPieces, WhateverFailsMeanwhileIsAnErrorAndItIsLiveTheNextTime) {
  for (const DeviceCall call : {DeviceCall::create, DeviceCall::map, DeviceCall::set_access}) {
    bool failed = true;
    for (std::uint64_t nth = 1; failed; ++nth) {
      SCOPED_TRACE(testing::Message() << name_of(call) << " " << nth);
      give_back(32_MiB);
      device_.fail(call, nth);
      failed = !small_->restore(state_).ok();
      EXPECT_THAT(heap_->validate(), testing::IsEmpty());
      (void)device_.forget_faults();
      restore_again();
      free(pieces_);
      ASSERT_LT(nth, 20u);
    }
  }
  restore_again();
}

// Of a page that stays, and of one that went.
TEST_F(GraphPoolRestore, ABlockWhoseMemoryHasGoneInPartIsCompletedAtItsPlace) {
  PoolBinding binding = warm_up(pool(), a_);
  void* const large = written(80_MiB, a_);
  std::vector<PlacedBlock> state = pool().blocks();
  free(large);
  void* const within = written(20_MiB, a_);  // the pages behind it are idle
  ASSERT_EQ(within, large);
  binding.close();
  device_.finish();
  ASSERT_TRUE(heap_->trim().ok());
  ASSERT_LT(heap_->statistics().reserved_bytes.current, (80_MiB).count);
  restore(state);
  write(a_, large);
  free_all();
}

TEST_F(GraphPoolRestore, WithoutMemoryForItsBlocksAStateIsRefusedAndAllIsAsItWas) {
  PoolBinding binding = warm_up(pool(), a_);
  (void)written(24_MiB, a_);
  binding.close();
  const std::vector<PlacedBlock> state = pool().blocks();
  free_all();
  device_.finish();
  ASSERT_TRUE(heap_->trim().ok());
  heap_->set_limit(16_MiB);
  expect_error(pool().restore(state), ErrorCode::out_of_memory, "limit");
  EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  EXPECT_EQ(heap_->statistics().reserved_bytes.current, 0u);
  heap_->set_limit(32_MiB);
  void* const idle = allocate(20_MiB, b_);
  free(idle);  // the device heap's; it goes first
  restore(state);
  free_all();
}

TEST_F(GraphPoolRestore, ABlockThatARefusedOnePutBackStillWaitsForItsUsers) {
  PoolBinding binding = warm_up(pool(), a_);
  void* const large = allocate(24_MiB, a_);
  const std::vector<PlacedBlock> state = pool().blocks();
  free(large);
  device_.finish();
  ASSERT_TRUE(heap_->trim().ok());
  void* const block = written(4_MiB, a_);
  ASSERT_TRUE(heap_->record_stream(block, b_).ok());
  heap_->set_limit(8_MiB);
  expect_error(pool().restore(state), ErrorCode::out_of_memory, "limit");
  order(a_, b_);
  read(b_, block, 10_ms);
  free(block);
  free(written(4_MiB, a_));  // a race, were the user forgotten
}

// Nothing is changed before it is known that every block could be one of the pool's.
TEST_F(GraphPoolRestore, PlacesThatNoBlockOfThePoolCanHaveAreRefusedBeforeAnythingIsFreed) {
  PoolBinding binding = warm_up(pool(), a_);
  void* const x = allocate(4_MiB, a_);
  void* const small = allocate(1000_B, a_);
  binding.close();
  const Stream other = device_.new_stream();  // the pool knows nothing of it
  void* const elsewhere = heap_->allocate(4_MiB, b_).value();
  const std::vector<PlacedBlock> live = pool().blocks();
  const auto block_at = [&](void* at) {
    return *std::find_if(live.begin(), live.end(),
                         [&](const PlacedBlock& each) { return each.address.pointer() == at; });
  };
  const PlacedBlock large = block_at(x), tile = block_at(small);
  const auto changed = [](PlacedBlock block, auto&& change) { return change(block), block; };
  const auto moved = [&](PlacedBlock block, Address to) {
    return changed(block, [&](PlacedBlock& each) { each.address = each.run = to; });
  };
  const PlacedBlock inside = moved(large, large.address + 1_MiB);
  const Bytes all{~std::uint64_t{0}};
  const std::pair<const char*, PlacedBlock> impossible[] = {
      {"no address", moved(large, Address{})},
      {"not the pool's", moved(large, Address::of(elsewhere))},
      {"nobody's", moved(large, Address{std::uint64_t{1} << 45})},
      {"no device's", moved(large, Address{std::uint64_t{1} << 60})},
      {"not at a grain", moved(large, large.address + 256_B)},
      {"not at a grain, small",
       changed(tile, [](PlacedBlock& each) { each.address = each.address + 8_B; })},
      {"of a run behind it",
       changed(tile, [](PlacedBlock& each) { each.run = each.address + 512_B; })},
      {"of a run elsewhere", changed(tile, [](PlacedBlock& each) { each.run = Address{4096}; })},
      {"not asked for", changed(large, [](PlacedBlock& each) { each.requested = 0_B; })},
      {"more asked for", changed(large, [](PlacedBlock& each) { each.requested = 5_MiB; })},
      {"too large for what was asked for",
       changed(large, [](PlacedBlock& each) { each.bytes = 5_MiB; })},
      {"nothing", changed(inside, [](PlacedBlock& each) { each.requested = each.bytes = 0_B; })},
      {"more than there is",
       changed(inside, [&](PlacedBlock& each) { each.requested = all, each.bytes = 0_B; })},
      {"beyond the last address", changed(large,
                                          [&](PlacedBlock& each) {
                                            each.requested = each.bytes = each.run_bytes =
                                                all - 511_B;
                                          })},
      {"beyond the heap's addresses", changed(large,
                                              [](PlacedBlock& each) {
                                                each.requested = each.bytes = each.run_bytes =
                                                    Bytes{std::uint64_t{1} << 46};
                                              })},
      {"of another stream", changed(large, [&](PlacedBlock& each) { each.stream = other; })},
  };
  const Gauge before = heap_->statistics().live_blocks;
  const std::vector<std::uint64_t> pages = {device_.live().mappings, device_.live().reservations};
  for (const auto& [what, block] : impossible) {
    SCOPED_TRACE(what);
    // x would have to go, and the small block to stay.
    const PlacedBlock wanted[] = {tile, block};
    expect_error(pool().restore(wanted), ErrorCode::invalid_argument,
                 (format(block.address) + " is no block").c_str());
    EXPECT_EQ(heap_->statistics().live_blocks, before) << "none was freed, nor allocated anew";
    EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  }
  EXPECT_EQ(device_.live().mappings, pages[0]);
  EXPECT_EQ(device_.live().reservations, pages[1]);
  write(a_, x);
  write(a_, small);
  free(x);
  free(small);
  EXPECT_TRUE(heap_->deallocate(elsewhere).ok());
}

TEST_F(GraphPoolRestore, PlacesThatOverlapAreRefusedAndTheBlocksLiveOn) {
  PoolBinding binding = warm_up(pool(), a_);
  void* const x = allocate(8_MiB, a_);
  void* const small = allocate(2000_B, a_);
  binding.close();
  const std::vector<PlacedBlock> live = pool().blocks();
  const bool small_first = live[0].address == Address::of(small);
  const PlacedBlock large = live[small_first ? 1 : 0], tile = live[small_first ? 0 : 1];
  const auto part = [](PlacedBlock of, Bytes from, Bytes bytes) {
    if (of.run_bytes == of.bytes) {
      of.run = of.run + from;
      of.run_bytes = bytes;
    }
    of.address = of.address + from;
    of.bytes = of.requested = bytes;
    return of;
  };
  const std::vector<PlacedBlock> overlapping[] = {
      {large, part(large, 4_MiB, 4_MiB)},
      {part(large, 4_MiB, 4_MiB), large},
      {part(large, 0_B, 4_MiB), part(large, 2_MiB, 4_MiB)},
      {part(large, 0_B, 4_MiB), part(large, 0_B, 6_MiB)},
      {large, tile, part(tile, 512_B, 512_B)},
      {part(tile, 0_B, 1_KiB), part(tile, 512_B, 1_KiB)},
  };
  for (const std::vector<PlacedBlock>& wanted : overlapping) {
    SCOPED_TRACE(&wanted - overlapping);
    expect_error(pool().restore(wanted), ErrorCode::invalid_argument,
                 "can't go back to that state: the block of ");
    EXPECT_THAT(heap_->validate(), testing::IsEmpty());
    const std::vector<PlacedBlock> now = pool().blocks();
    ASSERT_EQ(now.size(), live.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      EXPECT_EQ(now[i].address, live[i].address);
      EXPECT_EQ(now[i].bytes, live[i].bytes);
      EXPECT_EQ(now[i].requested, live[i].requested);
    }
  }
  write(a_, x);
  write(a_, small);
  free(x);
  free(small);
}

TEST_F(GraphPoolRestore, IsRefusedDuringACapture) {
  CaptureScope capture = begin(pool(), a_);
  expect_error(pool().restore({}), ErrorCode::invalid_argument, "a capture into it is going on");
}

}  // namespace
}  // namespace weir::test
