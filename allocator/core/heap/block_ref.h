// SPDX-License-Identifier: Apache-2.0
// A block that a stream heap has given out, or caches, whatever its size; and the cached ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/heap/slabs.h"
#include "core/memory/tile.h"

namespace weir {

// Refers to a run of its own, or to a tile of a slab; or to nothing. Does not own the record.
class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(Tile* run) : record_(reinterpret_cast<std::uintptr_t>(run)) {}
  explicit BlockRef(SmallTile* tile)
      : record_(tile == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(tile) | kSmall) {}
  explicit operator bool() const { return record_ != 0; }
  friend bool operator==(const BlockRef&, const BlockRef&) = default;

  bool is_small() const { return (record_ & kSmall) != 0; }
  Tile* run() const { return reinterpret_cast<Tile*>(record_); }  // it is not small
  SmallTile* tile() const { return reinterpret_cast<SmallTile*>(record_ - kSmall); }  // it is
  // visit(record), which is a Tile& or a SmallTile&.
  template <class Visitor>
  [[gnu::always_inline]] decltype(auto) visit(Visitor&& visitor) const WEIR_NO_THREAD_ANALYSIS {
    return is_small() ? visitor(*tile()) : visitor(*run());
  }

  Address begin() const {
    return visit([](auto& record) { return begin_of(record); });
  }
  Bytes size() const {
    return visit([](auto& record) { return size_of(record); });
  }
  Range range() const { return {begin(), size()}; }
  Address end() const { return begin() + size(); }
  // As asked for.
  Bytes requested() const {
    return visit([](auto& record) { return requested_of(record); });
  }
  BlockUsesPtr& uses() const {
    return visit([](auto& record) -> BlockUsesPtr& { return record.uses; });
  }
  BlockState& state() const {
    return visit([](auto& record) -> BlockState& { return record.state; });
  }
  std::uint32_t epoch() const { return is_small() ? tile()->held.epoch : run()->epoch; }
  void set_epoch(std::uint32_t epoch) const {
    if (is_small()) {
      tile()->held.epoch = epoch;
    } else {
      run()->epoch = epoch;
    }
  }
  Nanoseconds& allocated_at() const {
    return visit([](auto& record) -> Nanoseconds& { return record.allocated_at; });
  }

 private:
  static constexpr std::uintptr_t kSmall = 1;  // which no record's address has
  std::uintptr_t record_ = 0;
};

// The block is given out.
inline void mark_live(Tile& run, Bytes requested) {
  run.state = BlockState::live;
  run.requested = requested;
}
inline void mark_live(SmallTile& tile, Bytes requested) {
  tile.state = BlockState::live;
  tile.held.requested = static_cast<std::uint32_t>(requested.count);
  tile.slab->live += tile.size();
}

// The blocks that a stream heap freed last: kept whole, for the next requests of their sizes.
// Not thread-safe.
class BlockCache {
 public:
  struct Cached {
    Bytes size;
    BlockRef block;
    friend bool operator==(const Cached&, const Cached&) = default;
  };

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == cached_.size(); }
  std::uint32_t count() const { return count_; }
  // How often this block is cached; more than once is a fault.
  std::ptrdiff_t count(const Cached& block) const {
    return std::count(cached_.begin(), cached_.begin() + count_, block);
  }

  // The next three need a cached block.
  const Cached& newest() const { return cached_[count_ - 1]; }
  BlockRef oldest() const { return cached_[0].block; }
  BlockRef take_newest() { return cached_[--count_].block; }
  // The newest block of that size; or none.
  BlockRef find(Bytes size) const {
    for (std::uint32_t i = count_; i-- > 0;) {
      if (cached_[i].size == size) return cached_[i].block;
    }
    return {};
  }
  // `block` is cached.
  void take(BlockRef block) {
    Cached* place = &cached_[--count_];
    for (Cached moved = *place; moved.block != block;) moved = std::exchange(*--place, moved);
  }
  // The cache is not full.
  void put(const Cached& block) { cached_[count_++] = block; }

 private:
  friend struct TestAccess;

  std::uint32_t count_ = 0;
  std::array<Cached, 8> cached_;  // the first count_, oldest first
};

}  // namespace weir
