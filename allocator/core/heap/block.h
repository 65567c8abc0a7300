// SPDX-License-Identifier: Apache-2.0
// Records of blocks, and of the free stretches between small ones: one cache line and a bit each,
// from a pool. Whoever owns the pool guards them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/range.h"
#include "core/time/timelines.h"
#include "weir/types.h"

namespace weir {

struct Slab;

// Who beside a block's own stream uses it.
struct BlockUses {
  FenceSet fences;                // of other streams
  std::vector<TimelineId> users;  // that record_stream named
};

struct Block {
  enum class State : std::uint8_t {
    free,    // a stretch of a slab that nobody has
    live,    // between allocate() and deallocate()
    cached,  // deallocated, and kept whole for the next request of its size
    slab,    // a run that small blocks are packed into
  };

  Address begin;
  Bytes size;
  // What is free stands in a list of stretches of like size (or of spare records: `next`).
  union {
    Bytes requested{};  // as asked for, if live
    Block* previous;    // free: in its list
  };
  union {
    BlockUses* uses = nullptr;  // not free; null: none
    Block* next;                // free: in its list
  };
  std::uint64_t name = 0;  // a run: of the request that it was placed for (RequestHistory)
  Slab* slab = nullptr;    // that it lies in, or is; null: a run of its own
  // By address, among the tiles of its slab or, of a run, among the runs; null at the ends.
  Block* before = nullptr;
  Block* after = nullptr;
  State state = State::free;
  // The next two and the state are one word.
  static constexpr std::uint32_t kEpochs = 1 << 24;
  std::uint64_t epoch : 24 = 0;  // live: in which it was allocated (StreamHeap::move_to)
  // When it was allocated, by the device's clock, in units of 2^20 ns; 0: it was not recorded.
  std::uint64_t allocated_at : 32 = 0;

  void note_time(Nanoseconds time) {
    allocated_at = std::max<std::uint64_t>(static_cast<std::uint64_t>(time.count) >> 20, 1);
  }
  Nanoseconds time_allocated() const { return {static_cast<std::int64_t>(allocated_at << 20)}; }

  Range range() const { return {begin, size}; }
  Address end() const { return begin + size; }
  friend Address begin_of(const Block& block) { return block.begin; }
};

// Not thread-safe. Records stay where they are; what it has taken from the system it keeps.
class BlockPool {
 public:
  Block* take() {
    if (spare_ == nullptr) [[unlikely]]
      add_chunk();
    Block* const block = spare_;
    spare_ = block->next;
    *block = Block{};
    return block;
  }
  void give_back(Block* block) {
    block->next = spare_;
    spare_ = block;
  }

  // Of `block`, new if need be.
  BlockUses& uses(Block& block);
  // It has none any more.
  void drop_uses(Block& block);

 private:
  static constexpr std::size_t kChunk = 16;
  void add_chunk();

  std::vector<std::unique_ptr<Block[]>> chunks_;
  Block* spare_ = nullptr;
  std::vector<std::unique_ptr<BlockUses>> all_uses_;
  std::vector<BlockUses*> spare_uses_;
};

}  // namespace weir
