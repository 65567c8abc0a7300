// SPDX-License-Identifier: Apache-2.0
// Small blocks of one stream heap: packed into slabs, which are ordinary runs of the page heap.
//
// A slab is tiled, from end to end, by blocks and by free stretches between them; two free
// stretches never lie side by side. A free stretch carries the fences of all blocks that it was
// made of: whoever takes a part of it waits for all of them first, and what is left carries none
// then. A request takes the smallest of the first few free stretches that fit (so that rarely,
// where a bin is full of smaller ones, a slab is added though a later stretch would do).
// The last grain of a slab is never given out, so that two slabs side by side stay two.
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/broken.h"
#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/memory/block_uses.h"
#include "core/memory/layout.h"
#include "core/memory/size_bins.h"
#include "core/memory/tile.h"
#include "weir/types.h"

namespace weir {

struct SmallTile;

struct Slab {
  static constexpr Bytes kSize = 2_MiB;
  // Where no run of that size can be had.
  static constexpr Bytes kLeast = 512_KiB;
  // For finding a tile: the first that begins in each stretch of this many grains (16 KiB).
  static constexpr std::uint64_t kStretch = 16_KiB / kGrain;
  static constexpr std::uint64_t kStretches = kSize / kGrain / kStretch;

  Tile* run = nullptr;  // the owner's record
  Address begin;
  Bytes size;
  Bytes used;
  Bytes live;                                  // of `used`, by live blocks: its heap counts them
  std::uint64_t shift = 0;                     // its region's (Layout)
  std::size_t position = 0;                    // among its heap's slabs
  std::array<SmallTile*, kStretches> first{};  // null: none begins there

  Range range() const { return {begin, size}; }
  // The tile that `address`, in the slab, lies in.
  SmallTile* tile_at(Address address) const;
};

// A small block, or a free stretch of a slab.
struct SmallTile {
  struct Held {
    std::uint32_t requested = 0;
    std::uint32_t epoch = 0;  // in which it was allocated (StreamHeap::move_to)
  };

  Slab* slab = nullptr;
  // By address, in the slab; null at its ends.
  SmallTile* before = nullptr;
  SmallTile* after = nullptr;
  BlockUsesPtr uses;
  // Live, or cached: what it holds, and when it was allocated. Free: links of its bin, or (`next`)
  // of the spare records.
  union {
    Held held{};
    SmallTile* previous;
  };
  union {
    Nanoseconds allocated_at{};
    SmallTile* next;
  };
  // In grains, the first counted from the slab's.
  std::uint16_t first_grain = 0;
  std::uint16_t grains = 0;
  BlockState state = BlockState::free;

  Address begin() const { return slab->begin + kGrain * first_grain; }
  Bytes size() const { return kGrain * grains; }
  Range range() const { return {begin(), size()}; }
  Address end() const { return begin() + size(); }
  Bytes size_in_bins() const { return size(); }
  friend Address begin_of(const SmallTile& tile) { return tile.begin(); }
  friend Bytes size_of(const SmallTile& tile) { return tile.size(); }
  friend Bytes requested_of(const SmallTile& tile) { return {tile.held.requested}; }
  friend std::uint64_t item_of(const SmallTile& tile) {
    return Layout::item(tile.slab->shift, tile.begin(), tile.size());
  }
};
static_assert(sizeof(SmallTile) <= 56, "there are as many as small blocks");

inline SmallTile* Slab::tile_at(Address address) const {
  const std::uint64_t grain = (address - begin) / kGrain;
  std::uint64_t stretch = grain / kStretch;
  while (first[stretch] == nullptr || first[stretch]->first_grain > grain) --stretch;
  SmallTile* tile = first[stretch];
  while (tile->after != nullptr && tile->after->first_grain <= grain) tile = tile->after;
  return tile;
}

class Slabs {
 public:
  // The largest block that is small.
  static constexpr Bytes kLargest = 256_KiB;
  static_assert(kLargest < Slab::kLeast);

  // A free stretch for a block of `size` (a multiple of kGrain, at most kLargest): what take() is
  // for. Null: add a slab.
  SmallTile* find(Bytes size) const;
  // The first that has room and that `suits(stretch)` is true of.
  template <class Suits>
  SmallTile* find_if(Bytes size, Suits&& suits) const WEIR_NO_THREAD_ANALYSIS;
  // The beginning of a free stretch becomes a live block. What the stretch carries, the block does.
  SmallTile* take(SmallTile* stretch, Bytes size);
  // The same, at a place in `slab`; null: it is not free.
  SmallTile* take_at(const Slab& slab, Range block);
  // `run` is Slab::kSize or Slab::kLeast long; it stays the caller's. All is one free stretch.
  Slab& add(Tile* run);
  // A block goes back, with its fences; its record is gone. When it was the slab's last, the slab
  // goes too: its run, with what it carries. Else null.
  Tile* free(SmallTile* block);

  std::size_t size() const { return slabs_.size(); }
  // Broken invariants.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  static constexpr int kLookedAt = 8;  // free stretches that are compared
  static constexpr std::size_t kBatch = 32;

  // Records stay where they are; what was taken from the system is kept.
  SmallTile* take_record();
  void give_back_record(SmallTile* record);
  SmallTile* cut(SmallTile* tile, Bytes size);
  void swallow_next(SmallTile* tile);
  void validate_tiles(const Slab& slab, Broken& broken) const;

  SizeBins<SmallTile, 256> free_;  // up to a whole slab
  std::vector<std::unique_ptr<SmallTile[]>> records_;
  SmallTile* spare_ = nullptr;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

template <class Suits>
SmallTile* Slabs::find_if(Bytes size, Suits&& suits) const {
  SmallTile* found = nullptr;
  free_.visit_fitting(size, [&](SmallTile& at) {
    if (suits(at)) found = &at;
    return found == nullptr;
  });
  return found;
}

}  // namespace weir
