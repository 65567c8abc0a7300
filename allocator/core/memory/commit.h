// SPDX-License-Identifier: Apache-2.0
// Carries out plans, and takes runs back: puts memory behind addresses where the plan says so,
// makes the waits, and marks bytes used, or free.
//
// Guarded by the page heap's lock.
#pragma once

#include <vector>

#include "core/memory/mappings.h"
#include "core/memory/page_heap_state.h"
#include "core/memory/page_supply.h"
#include "core/memory/request.h"
#include "weir/result.h"

namespace weir {

class Commit {
 public:
  Commit(PageHeapState& heap, PageSupply& supply, Mappings& mappings)
      : heap_(heap), supply_(supply), mappings_(mappings) {}

  // The run, as one tile: used, and the owner's. Null: the request's status says why; new memory
  // that was mapped by then is free. (A plan to map what is held has no run, and may succeed.)
  Tile* carry_out(Request& request, const Plan& plan);
  // Where addresses of the run lost their memory they get new pages.
  Status fill(Request& request, Range run);
  // The run is free again (PageHeap::free()).
  void free(const Owner& owner, Tile* tile);

 private:
  // --- Memory behind addresses; afterwards its bytes are free. What fails leaves the tables as
  // they were, but for pages that stay held, or free, and serve another plan.

  // Maps pages of at least `home.size` together from `home.begin` on, where the row is vacant, or,
  // if it is zero, anywhere: held ones first, then new ones. Returns what they cover.
  Result<Range> extend(Request& request, Range home);
  Status map_held(Request& request);
  // Maps the plan's pieces side by side, and creates what it lacks. The row is idle.
  Result<StitchedRow*> build(Request& request, const StitchPlan& plan);
  // The row, which is empty, gets the pages; it is idle then.
  Result<StitchedRow*> map_row(Request& request, StitchedRow& row, const std::vector<Page*>& pages,
                               Bytes lead);
  // Makes a row that has gone again, of new pages.
  Status fill_row(Request& request, Range run);
  // A new segment of plain memory, of a good size for the request, or the least.
  Result<Range> add_segment(Request& request);
  Result<Range> map_home(const Owner& owner, Address at, const std::vector<HeldPage>& pages);
  void note_borrowed(Page& page, const Lent& lent);

  // --- Runs.

  Tile* grow(Request& request, const Plan& plan);
  Tile* claim_segment(Request& request);
  // Gives free bytes to the owner: makes its stream wait as needed, and marks the bytes used.
  Tile* claim(Request& request, Tile* head, Range home);
  Tile* claim_row(Request& request, StitchedRow& row);
  void collect_needed(Request& request, const Tile* head, Range home, FenceSet& fences);
  Tile* take(const Owner& owner, Tile* head, Range home, Tile::Kind kind);
  void release(const Owner& owner, Tile* tile);
  // The pages that share a byte with the home range and lie whole in the run.
  Range idle_around(const Tile& head, Range home) const;
  // They are idle no more (`leased`), or idle again.
  void note_lease(const Owner& owner, const Tile& head, Range home, bool leased);

  PageHeapState& heap_;
  PageSupply& supply_;
  Mappings& mappings_;
};

}  // namespace weir
