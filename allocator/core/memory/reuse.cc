// SPDX-License-Identifier: Apache-2.0
#include "core/memory/reuse.h"

#include <algorithm>

#include "core/base/mechanism.h"

namespace weir {
namespace {

// Bytes that were freed this many requests ago or fewer may still be in use: the balanced policy
// rather grows, as far as growing costs little.
constexpr std::uint64_t kRecent = 64;

}  // namespace

void Reuse::begin(Request& request) {
  const TimelineId timeline = request.owner.timeline;
  request.knows_capture = rules_.trusts_context && !tables_.single_timeline;
  request.idle_only = request.knows_capture && !timelines_.not_captured(timeline);
  request.over_only = request.idle_only;
  request.settled_only = request.idle_only || rules_.reuse == ReusePolicy::no_wait;
  request.asks_each = rules_.trusts_context || request.settled_only;
  // (A wait in a capture is an edge of the graph, and no event of the context.)
  const bool may_avoid =
      rules_.trusts_context && remote_work_.any() && !timelines_.stream(timeline).is_in_capture();
  request.remote = may_avoid ? Request::Remote::not_asked : Request::Remote::takes;
}

void Reuse::avoid_waits(Request& request) const {
  if (!request.settled_only) request.over_only = rules_.trusts_context;
  request.settled_only = request.asks_each = true;
}

Sequence Reuse::learn(Known& known, TimelineId waiter, TimelineId of) {
  const std::uint64_t learnt = timelines_.learnt();
  known = {waiter, of, learnt, timelines_.past(waiter, of)};
  return known.past;
}

// Bytes that the owner's own stream freed are ordered behind that stream's work already; whoever
// had them before was waited for when the stream took them. Other streams that were named as users
// are waited for in any case.
void Reuse::collect(const Owner& owner, const Tile& tile, FenceSet& fences) const {
  if (tile.by == Tile::kNobody) return;
  if (tile.by != owner.timeline) fences.join(tables_.tiles.release_point(tile));
  if (tile.uses) fences.join(tile.uses->fences);
}

FenceSet Reuse::collect(const Owner& owner, const Tile* head, Range home) const {
  FenceSet fences;
  (void)Tiles::visit_notes(head, home, [&](const Tile& tile) {
    collect(owner, tile, fences);
    return true;
  });
  return fences;
}

void Reuse::collect_needed(Request& request, const Tile& tile, FenceSet& fences) {
  // (Where uses need not be told, more than the wait depends on whose the bytes were.)
  if (!request.waits || (!rules_.trusts_context && is_past(request, tile))) return;
  collect(request.owner, tile, fences);
}

Reuse::Wait Reuse::wait_needed(Request& request, const Tile* head, Range home) {
  if (request.asks_each) [[unlikely]] {
    if (is_barred(request.owner, head, home)) return Wait::recent;
    if (!request.may_wait()) {
      return is_settled(request, head, home) ? Wait::none : Wait::recent;
    }
    if (waits_for_remote_work(request, head, home)) return Wait::recent;
  }
  if (tables_.single_timeline || rules_.reuse == ReusePolicy::wait) return Wait::none;
  bool recent = false, own_only = true;
  const auto has_users = [&](const Tile& tile) {
    return tile.by == request.owner.timeline ? bool{tile.uses} : tile.by != Tile::kNobody;
  };
  (void)Tiles::visit_notes(head, home, [&](const Tile& tile) {
    if (!has_users(tile)) return true;
    const bool own = tile.by == request.owner.timeline;
    own_only = own_only && own;
    recent =
        recent ||
        (!without(Mechanism::avoiding_recent) && tables_.requests - tile.freed_at <= kRecent) ||
        (rules_.trusts_context && !own);
    return true;
  });
  if (!recent || Tiles::visit_notes(head, home, [&](const Tile& tile) {
        return !has_users(tile) || is_past(request, tile);
      })) {
    return Wait::none;
  }
  return own_only ? Wait::elsewhere : Wait::recent;
}

bool Reuse::is_in_use(Request& request, const Tile* head, Range home) {
  return is_barred(request.owner, head, home) ||
         !Tiles::visit_notes(head, home, [&](const Tile& tile) { return is_past(request, tile); });
}

Bytes Reuse::in_use_elsewhere(const Request& request, const Tile& head) {
  Bytes bytes;
  (void)Tiles::visit_notes(&head, head.run_range(), [&](const Tile& tile) {
    const bool own = tile.by == request.owner.timeline;
    if (own && !is_past(request, tile)) bytes += tile.size;
    return true;
  });
  return bytes;
}

Reuse::Wait Reuse::wait_needed(Request& request, const StitchedRow& row) {
  Wait all = Wait::none;
  (void)row.visit_parts(request.size, [&](Range home) {
    all = std::max(all, wait_needed(request, tables_.tiles.run_around(home), home));
    return all != Wait::recent;
  });
  return all;
}

bool Reuse::is_barred(const Owner& owner, const Tile* head, Range home) const {
  if (!rules_.trusts_context || !tables_.keeps_any) return false;
  const auto stream = [&](TimelineId timeline) {
    return timelines_.stream(timeline).outside_capture().id;
  };
  const std::uint64_t mine = stream(owner.timeline);
  const bool captured = timelines_.stream(owner.timeline).is_in_capture();
  bool barred = false;
  tables_.pages.walk(home, [&](const Page& page, Bytes offset, Bytes size) {
    if (barred || page.kept == Page::Kept::no) return;
    barred = !Tiles::visit_notes(head, {page.home + offset, size}, [&](const Tile& tile) {
      return tile.by == Tile::kNobody || stream(tile.by) == mine ||
             (captured && tables_.over_at_capture && tile.released <= *tables_.over_at_capture);
    });
  });
  return barred;
}

bool Reuse::is_settled(Request& request, const Tile* head, Range home) {
  if (request.idle_only) return timelines_.is_seen_complete(tables_.users_of(head, home));
  return Tiles::visit_notes(head, home, [&](const Tile& tile) {
    return (!request.over_only && is_past(request, tile)) || is_over(request, tile);
  });
}

bool Reuse::is_over(Request& request, const Tile& tile) {
  if (tile.by == Tile::kNobody) return true;
  if (tile.by != request.owner.timeline && !is_over(request, tables_.tiles.release_point(tile))) {
    return false;
  }
  return !tile.uses || std::all_of(tile.uses->fences.begin(), tile.uses->fences.end(),
                                   [&](Fence fence) { return is_over(request, fence); });
}

bool Reuse::is_over(Request& request, Fence fence) {
  const std::optional<Fence>& not_over = request.not_over;
  if (not_over && fence.timeline == not_over->timeline && fence.sequence >= not_over->sequence) {
    return false;
  }
  // (An error counts as no, here alone.)
  const Result<bool> over = timelines_.complete(fence);
  if (over && !*over) request.not_over = fence;
  return over && *over;
}

bool Reuse::is_refused(Request& request, const Tile* head, Range home) {
  if (!request.asks_each) return false;
  return is_out_of_reach(request, head, home) ||
         (!request.may_wait() && !is_settled(request, head, home));
}

bool Reuse::is_out_of_reach(Request& request, const Tile* head, Range home) {
  return is_barred(request.owner, head, home) || waits_for_remote_work(request, head, home);
}

// An event that was recorded before that work was queued does not cover it, and may be over.
bool Reuse::waits_for_remote_work(Request& request, const Tile* head, Range home) {
  if (request.remote == Request::Remote::takes) return false;
  FenceSet of_context;
  for (const Fence fence : collect(request.owner, head, home)) {
    if (timelines_.stream(fence.timeline).is_all() && !is_past(request, fence)) {
      of_context.join(fence);
    }
  }
  if (of_context.empty()) return false;
  if (request.remote == Request::Remote::not_asked) {
    request.remote = remote_work_.goes_on() ? Request::Remote::avoids : Request::Remote::takes;
  }
  if (request.remote == Request::Remote::takes) return false;
  if (!timelines_.is_seen_complete(of_context)) return true;
  return false;
}

Status Reuse::wait_for(Request& request, const FenceSet& fences) {
  if (fences.empty()) return {};
  const Owner& owner = request.owner;
  // What a stream has waited for says nothing of what is captured on it.
  if (rules_.trusts_context && request.may_wait() && !request.knows_capture) {
    if (Status free = timelines_.not_captured(owner.timeline); !free) return free;
  }
  for (const Fence fence : fences) {
    if (is_past(request, fence)) continue;
    if (Status status = timelines_.wait(owner.timeline, fence, &owner.fold, &request.waited);
        !status) {
      return status;
    }
  }
  return {};
}

}  // namespace weir
