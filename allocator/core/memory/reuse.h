// SPDX-License-Identifier: Apache-2.0
// Whose free memory a request for a run may have, and after which waits. (The placer decides
// whether it takes memory that needs a wait. What a stream heap cached waits in
// heap/served_stream.h.)
//
// Guarded by the page heap's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/memory/page_tables.h"
#include "core/memory/request.h"
#include "core/time/remote_work.h"
#include "core/time/timelines.h"

namespace weir {

class Reuse {
 public:
  Reuse(const PageTables& tables, const PageRules& rules, Timelines& timelines,
        RemoteWork& remote_work)
      : tables_(tables), rules_(rules), timelines_(timelines), remote_work_(remote_work) {}

  // Sets what memory the request may have, before it is placed.
  void begin(Request& request);
  // A wait failed, since a stream is being captured: from now on the request takes only memory that
  // needs no wait. (Another attempt may fail so again: joining neighbours' notes can add waits.)
  void avoid_waits(Request& request) const;

  // How the reuse policy sees the wait that the request's stream needs for these bytes of a run.
  enum class Wait : std::uint8_t {
    none,       // none; or one for uses that are long past, and likely over; always under `wait`
    elsewhere,  // the stream freed the bytes itself, but other streams were named that use them
    recent,     // another stream's, used not long ago (Trust::context: whenever it was); or the
                // request may not have the bytes
  };
  Wait wait_needed(Request& request, const Tile* head, Range home);
  // The same for a row whose bytes are free.
  Wait wait_needed(Request& request, const StitchedRow& row);
  // Would its stream have to wait for these bytes, or may the request not have them?
  bool is_in_use(Request& request, const Tile* head, Range home);
  // Bytes of the run that are the stream's own, and that other streams still use.
  Bytes in_use_elsewhere(const Request& request, const Tile& head);
  // May the request not have these bytes at all?
  bool is_refused(Request& request, const Tile* head, Range home);
  // May it not have them though it may wait: since a graph may use them, or the wait would cover
  // work that waits for other processes?
  bool is_out_of_reach(Request& request, const Tile* head, Range home);

  // Makes the request's stream wait, on the GPU, for those of the fences that it is not past.
  Status wait_for(Request& request, const FenceSet& fences);
  // Adds the fences that the stream has to wait for before it uses the tile's bytes, unless it is
  // known to be past all of them.
  void collect_needed(Request& request, const Tile& tile, FenceSet& fences);

 private:
  // A cache: up to which point `waiter` runs after `of`; perhaps further, once Timelines::learnt()
  // is not `learnt` any more.
  static constexpr std::size_t kKnown = 64;
  struct Known {
    TimelineId waiter, of;
    std::uint64_t learnt = ~std::uint64_t{0};
    Sequence past;
  };

  Sequence learn(Known& known, TimelineId waiter, TimelineId of);
  bool is_past(const Request& request, Fence fence) {
    const TimelineId waiter = request.owner.timeline, of = fence.timeline;
    if (of == waiter) return true;
    Known& known = known_[(of.value * 9 + waiter.value) % kKnown];
    if (known.of == of && known.waiter == waiter) {
      if (fence.sequence <= known.past) return true;
      if (known.learnt == timelines_.learnt()) return false;
    }
    return fence.sequence <= learn(known, waiter, of);
  }
  bool is_past(const Request& request, const Tile& tile) {
    if (tile.by != request.owner.timeline && tile.by != Tile::kNobody &&
        !is_past(request, tables_.tiles.release_point(tile))) {
      return false;
    }
    return !tile.uses || std::all_of(tile.uses->fences.begin(), tile.uses->fences.end(),
                                     [&](Fence fence) { return is_past(request, fence); });
  }
  void collect(const Owner& owner, const Tile& tile, FenceSet& fences) const;
  FenceSet collect(const Owner& owner, const Tile* head, Range home) const;
  // Under Trust::context, memory that a graph may use serves only the stream that the graph was
  // captured on: another stream can't know when the graph is launched.
  bool is_barred(const Owner& owner, const Tile* head, Range home) const;
  // Are the earlier uses over, or ordered before the stream's work, as far as is known or can be
  // seen now?
  bool is_settled(Request& request, const Tile* head, Range home);
  // Are the tile's earlier uses over?
  bool is_over(Request& request, const Tile& tile);
  bool is_over(Request& request, Fence fence);
  // Would the stream wait for an event of the whole context, while work that such an event covers
  // waits for other processes?
  bool waits_for_remote_work(Request& request, const Tile* head, Range home);

  const PageTables& tables_;
  const PageRules& rules_;
  Timelines& timelines_;
  RemoteWork& remote_work_;
  std::array<Known, kKnown> known_;
};

}  // namespace weir
