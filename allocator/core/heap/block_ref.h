// SPDX-License-Identifier: Apache-2.0
// A block that a stream heap has given out, or caches, whatever its size.
#pragma once

#include <cstdint>

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
  AllocationTime& allocated_at() const {
    return visit([](auto& record) -> AllocationTime& { return record.allocated_at; });
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

}  // namespace weir
