// SPDX-License-Identifier: Apache-2.0
// The blocks that a stream heap freed last: kept whole, for the next requests of their sizes.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/heap/block_ref.h"

namespace weir {

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
