// SPDX-License-Identifier: Apache-2.0
// What a page heap has, as tables: tiles, pages, rows, and their sums. Placer, Reuse and
// PageListing read them; the other parts of a page heap change them. Guarded by the page heap's
// lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/memory/home_pages.h"
#include "core/memory/stitched_rows.h"
#include "core/memory/tiles.h"
#include "weir/heap_types.h"

namespace weir {

// What never changes of a page heap.
struct PageRules {
  Bytes granularity;
  ReusePolicy reuse;
  std::uint64_t most_mappings;
  bool trusts_context;  // Trust::context
  bool plain;           // MemoryKind::plain
  bool of_graph_pool;

  // What of the device's granularity the range touches.
  Range granules_around(Range range) const {
    const Address begin{round_down(Bytes{range.begin.value}, granularity).count};
    return {begin, Address{round_up(Bytes{range.end().value}, granularity).count} - begin};
  }
  MemoryKind memory() const { return plain ? MemoryKind::plain : MemoryKind::pages; }
};

struct PageTables {
  PageTables(TileIndex& index, std::optional<TimelineId> context, Bytes granularity)
      : tiles(index, context), pages(index), rows(granularity) {}

  Tiles tiles;
  HomePages pages;
  StitchedRows rows;
  std::vector<HeldPage> held;       // pages that are not mapped
  Bytes held_bytes;                 // their sizes
  Bytes leased;                     // sizes of pages that are not idle, sleeping ones included
  std::size_t absent_mappings = 0;  // mappings that sleeping pages lack, or have for lent ones
  std::size_t lent_mappings = 0;    // of these, the latter
  Bytes absent_bytes;               // sizes of sleeping pages
  std::uint64_t requests = 0;       // requests for runs so far: the clock of placement
  Bytes peak_used;   // the most bytes in use, as far as that memory was not given back since
  Bytes peak_total;  // the most bytes held after any request
  bool short_of_mappings = false;  // the last request failed for want of mappings
  bool keeps_used = false;         // a capture goes on: whatever page is used is kept
  bool keeps_any = false;          // some page is kept
  // Trust::context: all work of the device was seen over as the capture that goes on began, up to
  // this point of the context; none: it was not.
  std::optional<Sequence> over_at_capture;
  // True while `first` alone has used the pages, and no fence was left on them: then nobody need be
  // waited for. Once false, it stays so.
  std::optional<TimelineId> first;
  bool single_timeline = true;
  std::atomic<bool> asleep{false};  // no request is served (page_sleep.h); read without the lock

  Bytes total() const { return pages.total() + held_bytes - absent_bytes; }
  std::size_t mappings() const {
    return pages.all().size() + rows.mappings() - absent_mappings + lent_mappings;
  }
  bool is_empty() const { return pages.all().empty() && held.empty(); }
  // Calls visit(Range) for the bytes of the page that are in use, tile by tile. (A tile may go on
  // in the page before, or the next.)
  template <class Visitor>
  void visit_used(const Page& page, Visitor&& visit) const {
    for (const Tile* tile = tiles.at(page.home); tile != nullptr && tile->begin < page.end();
         tile = tile->after) {
      if (tile->is_free() || tile->kind == Tile::Kind::vacant) continue;
      const Address from = std::max(tile->begin, page.home);
      visit(Range{from, std::min(tile->end(), page.end()) - from});
    }
  }
  // All work that may still use free bytes: `home`, in a run; an idle page.
  FenceSet users_of(const Tile* head, Range home) const {
    FenceSet fences;
    (void)Tiles::visit_notes(head, home, [&](const Tile& tile) {
      if (tile.by != Tile::kNobody) fences.join(tiles.release_point(tile));
      if (tile.uses) fences.join(tile.uses->fences);
      return true;
    });
    return fences;
  }
  FenceSet users_of(const Page& page) const {
    return users_of(tiles.run_around(page.range()), page.range());
  }
  // Pages are gone: that their bytes were once in use is no reason to grow again.
  void shrink_peak() { peak_used = std::max(tiles.used(), std::min(peak_used, total())); }
};

}  // namespace weir
