// SPDX-License-Identifier: Apache-2.0
// A tile: the one record of a stretch of addresses. The stretch is vacant, free, or used; a used
// tile is the block, or the slab, of a stream heap.
//
// A free tile says who used its bytes last: it is the note of whom their next user waits for. Free
// tiles side by side are a run; they stay apart where their notes differ. The run's first tile, its
// head, has the run's size, and stands in a bin by it.
//
// Threads: `begin`, `size` and `kind` change under two locks, the page heap's and that of the
// stream heap that has, or had, the tile. That stream heap's lock guards the rest of a used tile,
// the page heap's the rest of any other. `heap` is read without a lock, which is sound since
// TileIndex never gives a record back to the system: whoever found a tile by an address reads
// `heap`, takes that heap's lock, and looks whether it still is the tile's heap. If it is, the heap
// uses the tile, which stays as it is while the lock is held. If not, the address is no block's.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/range.h"
#include "core/memory/block_uses.h"
#include "weir/types.h"

namespace weir {

class StreamHeap;  // opaque here
struct Slab;
struct StitchedRow;

struct Tile {
  enum class Kind : std::uint8_t {
    vacant,  // no memory is mapped
    free,
    used,  // by a stream heap
    part,  // of a stitched row, whose own tile a stream heap uses
  };
  static constexpr TimelineId kNobody{~std::uint32_t{0}};

  Address begin;
  Bytes size;
  // Neighbours by address, in the same region; null at the region's ends, and for the tile of a
  // stitched row.
  Tile* before = nullptr;
  Tile* after = nullptr;
  // Links of the list that the tile is in: a bin (heads of runs, vacant tiles), the runs of its
  // stream heap (used tiles), or the spare records (`next` alone).
  Tile* previous = nullptr;
  Tile* next = nullptr;

  // A run's head: how many bytes and tiles the run has. (A vacant tile is a run of its own.)
  Bytes run;
  std::uint32_t tiles = 1;
  Kind kind = Kind::vacant;
  BlockState state = BlockState::live;  // used, and no slab
  union {
    Tile* edge = nullptr;  // a run's head: the run's last tile; the last tile: the head
    std::uint64_t name;    // used: the request that it was placed for (RequestHistory)
  };
  StitchedRow* row = nullptr;  // the stitched row that the used tile lies in, or the part is of

  // Free, the note: who freed the tile; up to which point of that timeline others wait; and when,
  // counted in requests.
  TimelineId by = kNobody;  // kNobody: its bytes were never used
  std::uint32_t epoch = 0;  // live: the capture epoch of its allocation (StreamHeap::move_to)
  Sequence released;
  union {
    std::uint64_t freed_at = 0;
    std::uint64_t item;  // used: what it counts as in its stream's Layout
  };

  BlockUsesPtr uses;                        // other streams that use the tile, or did
  BlockUsesPtr late;                        // used: fences that the page heap added meanwhile
  std::atomic<StreamHeap*> heap = nullptr;  // used: whose it is

  Slab* slab = nullptr;      // used, as a slab; null: as a block
  Bytes requested;           // live: what the program asked for
  Nanoseconds allocated_at;  // live, by the device's clock; 0: it was not recorded

  Range range() const { return {begin, size}; }
  Address end() const { return begin + size; }
  bool is_free() const { return kind == Kind::free; }
  // These ask the head of a run.
  Range run_range() const { return {begin, run}; }
  Address run_end() const { return begin + run; }
  Bytes size_in_bins() const { return run; }
  friend Address begin_of(const Tile& tile) { return tile.begin; }
  friend Bytes size_of(const Tile& tile) { return tile.size; }
  friend Bytes requested_of(const Tile& tile) { return tile.requested; }
  friend std::uint64_t item_of(const Tile& tile) { return tile.item; }
};

}  // namespace weir
