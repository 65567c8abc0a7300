// SPDX-License-Identifier: Apache-2.0
// The home row: addresses of one page heap, region by region, covered by tiles without a gap.
//
// Knows addresses and who used what; neither pages nor CUDA. Not thread-safe, but for the index.
//
// Rules that hold between calls (validate() checks them):
//   the tiles of a region lie side by side, from its begin to its end
//   two vacant tiles never lie side by side
//   free tiles side by side are one run; its head stands in the bin of the run's size
//   a run has at most kMost tiles
//   vacant and used tiles are in the index, and free ones are not
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/thread_annotations.h"
#include "core/memory/size_bins.h"
#include "core/memory/tile.h"
#include "core/memory/tile_index.h"
#include "weir/types.h"

namespace weir {

class Tiles {
 public:
  // How many tiles a run has at most; beyond that, neighbours are joined, with both notes. So a
  // look at a run costs no more than this. (With one note a run, recorded serving programs made
  // three times as many waits, since a request waits for the users of its own bytes only.)
  static constexpr std::uint32_t kMost = 24;

  // `context`: under Trust::context, the timeline of the whole context: whoever waits for a release
  // waits for a point of it.
  Tiles(TileIndex& index, std::optional<TimelineId> context) : index_(index), context_(context) {}
  ~Tiles();
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Records that are not in use go back to the index, for other page heaps.
  void give_back_spare() { index_.give_back_records(std::exchange(spare_, nullptr)); }
  // Addresses that were just reserved: vacant.
  void add_region(Range region);
  // The region that begins there goes, with its tiles.
  void remove_region(Address begin);
  // `range`, in a vacant tile, has memory now: it is free, and its note says that nobody used it.
  void fill(Range range);
  // `range`, in a run, has no memory any more: it is vacant.
  void vacate(Range range);
  // `range`, in the run of `head`, becomes one tile: used (and no heap's yet), or a part of a row.
  // The caller has read its notes, which are forgotten.
  Tile* take(Tile* head, Range range, Tile::Kind kind);
  // The work that another stream waits for before it uses the free tile.
  Fence release_point(const Tile& tile) const {
    return {context_.value_or(tile.by), tile.released};
  }
  // The tile, used or a part, becomes free; `release` and its uses are its note. It joins its
  // neighbours' run, and is one tile with a neighbour whose note is the same. Returns the run's
  // head.
  struct Release {
    TimelineId by;
    Sequence released;
    std::uint64_t freed_at;
  };
  Tile* release(Tile* tile, const Release& release);
  // Whoever uses bytes of the range next waits for `fences` too; but for those never used.
  void add_fences(Range range, const FenceSet& fences);

  // The head of the run that the range lies in; null: not all of the range is free.
  Tile* run_around(Range range) const;
  // The tile that the address lies in; null: it lies in no region.
  Tile* at(Address address) const;
  // All tiles, by address: the first, and the one that follows; null at the end.
  const Tile* first() const { return regions_.empty() ? nullptr : regions_.begin()->second.first; }
  const Tile* after(const Tile* tile) const;
  const SizeBins<Tile>& runs() const { return runs_; }
  const SizeBins<Tile>& vacant() const { return vacant_; }
  Bytes used() const { return used_; }  // bytes of used tiles and parts

  // Calls visit(const Tile&) for the tiles that share a byte with `range`, which lies in the run,
  // until it returns false. Returns whether all were visited.
  template <class Visitor>
  static bool visit_notes(const Tile* head, Range range, Visitor&& visit) WEIR_NO_THREAD_ANALYSIS {
    if (range.begin != head->begin && range.end() == head->run_end()) {
      for (const Tile* tile = head->edge;; tile = tile->before) {
        if (!visit(*tile)) return false;
        if (tile->begin <= range.begin) return true;
      }
    }
    const Tile* tile = head;
    while (tile->end() <= range.begin) tile = tile->after;
    for (;; tile = tile->after) {
      if (!visit(*tile)) return false;
      if (tile->end() >= range.end()) return true;
    }
  }

  Tile* take_record();
  void give_back_record(Tile* tile);

  // Broken rules, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  Tile* insert_after(Tile* before, Address begin, Bytes size, Tile::Kind kind);
  // The bytes from `at` on become a tile of their own, with the same note. Returns it.
  Tile* split(Tile* tile, Address at);
  // The tile takes in the next one, whose note is forgotten.
  void absorb_next(Tile* tile);
  // The tile around the address, or the head of the run around it; null: it lies in no region.
  Tile* head_around(Address address) const;
  static bool says_the_same(const Tile& a, const Tile& b);
  // Whoever waits for the note of `into` waits for the other's too.
  void join_note(Tile& into, const Tile& other) const;
  void shorten(Tile* head);
  void list_run(Tile* head, Tile* edge, Bytes run, std::uint32_t tiles);
  void become_vacant(Tile* tile);
  // Cuts `range` out of a run that stands in no bin: returns it as one tile, in no run. What is
  // left of the run stands in bins again.
  Tile* cut(Tile* head, Range range);

  TileIndex& index_;
  const std::optional<TimelineId> context_;
  SizeBins<Tile> runs_;
  SizeBins<Tile> vacant_;
  struct Region {
    Tile* first;
    Address end;
  };
  std::map<Address, Region> regions_;  // by begin
  Bytes used_;
  Tile* spare_ = nullptr;
};

}  // namespace weir
