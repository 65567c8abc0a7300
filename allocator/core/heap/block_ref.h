// SPDX-License-Identifier: Apache-2.0
// A block that a stream heap has given out, or caches, whatever its size.
#pragma once

#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/heap/slabs.h"
#include "core/memory/tile.h"

namespace weir {

// Refers to a run of its own, or to a tile of a slab; or to nothing. Does not own the record.
class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(Tile* run) : run_(run) {}
  explicit BlockRef(SmallTile* tile) : tile_(tile) {}
  explicit operator bool() const { return run_ != nullptr || tile_ != nullptr; }
  friend bool operator==(const BlockRef&, const BlockRef&) = default;

  Tile* run() const { return run_; }         // null: it is small
  SmallTile* tile() const { return tile_; }  // null: it is large
  bool is_small() const { return tile_ != nullptr; }
  // visit(record), which is a Tile& or a SmallTile&.
  template <class Visitor>
  [[gnu::always_inline]] decltype(auto) visit(Visitor&& visitor) const WEIR_NO_THREAD_ANALYSIS {
    return is_small() ? visitor(*tile_) : visitor(*run_);
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
  std::uint32_t epoch() const { return is_small() ? tile_->held.epoch : run_->epoch; }
  void set_epoch(std::uint32_t epoch) const {
    if (is_small()) {
      tile_->held.epoch = epoch;
    } else {
      run_->epoch = epoch;
    }
  }
  AllocationTime& allocated_at() const {
    return is_small() ? tile_->held.allocated_at : run_->allocated_at;
  }

 private:
  Tile* run_ = nullptr;
  SmallTile* tile_ = nullptr;
};

}  // namespace weir
