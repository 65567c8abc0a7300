// SPDX-License-Identifier: Apache-2.0
// Whom free memory may serve at all, and behind what wait. (How willingly memory that needs a wait
// is taken: page_heap_place.cc.)
#include <algorithm>
#include <utility>

#include "core/base/mutation.h"
#include "core/memory/page_heap.h"

namespace weir {

bool PageHeap::is_past(const Owner& owner, Fence fence) {
  if (fence.timeline == owner.timeline) return true;
  for (std::size_t i = 0; i < past_count_; ++i) {
    if (past_[i].timeline == fence.timeline) return fence.sequence <= past_[i].sequence;
  }
  const Sequence past = timelines_.past(owner.timeline, fence.timeline);
  if (past_count_ < past_.size()) past_[past_count_++] = {fence.timeline, past};
  return fence.sequence <= past;
}

bool PageHeap::is_past(const Owner& owner, const FenceSet& fences) {
  return std::all_of(fences.begin(), fences.end(),
                     [&](Fence fence) WEIR_REQUIRES(mutex_) { return is_past(owner, fence); });
}

bool PageHeap::is_past(const Owner& owner, const FreedRange& freed) {
  return (freed.use.by == owner.timeline || is_past(owner, freed.use.released)) &&
         is_past(owner, freed.use.fences);
}

// Bytes that the owner's own stream freed are ordered behind that stream's work already; whoever
// had them before was waited for when the stream took them. Other streams that were named as users
// are waited for in any case.
void PageHeap::collect(const Owner& owner, const Chunk& chunk, Range home, FenceSet& fences) {
  (void)chunk.freed.visit(home, [&](const FreedRange& freed) {
    const bool own = freed.use.by == owner.timeline;
    if (!own && !mutation::left_out(mutation::Site::wait_for_donor)) {
      fences.join(freed.use.released);
    }
    if (!mutation::left_out(own ? mutation::Site::wait_for_bytes_of_same_heap
                                : mutation::Site::wait_for_fences_of_donated)) {
      fences.join(freed.use.fences);
    }
    return true;
  });
}

FenceSet PageHeap::users_of(Range home) const {
  FenceSet fences;
  if (mutation::left_out(mutation::Site::trim_checks_completion)) return fences;
  (void)chunks_.visit_freed(home, [&](const FreedRange& freed) {
    fences.join(freed.use.released);
    fences.join(freed.use.fences);
    return true;
  });
  return fences;
}

std::vector<PageHeap::FreeInUse> PageHeap::free_in_use_by(
    const std::vector<TimelineId>& users) const {
  const QueuedLock lock(mutex_);
  std::vector<FreeInUse> free;
  for (const Chunk* chunk = chunks_.first(); chunk != nullptr; chunk = chunk->after) {
    if (chunk->state != Chunk::State::free) continue;
    (void)chunk->freed.visit(chunk->range(), [&](const FreedRange& freed) {
      FenceSet uses;
      for (const Fence fence : freed.use.fences) {
        if (std::find(users.begin(), users.end(), fence.timeline) != users.end()) uses.join(fence);
      }
      if (!uses.empty()) free.push_back({freed.range().size, std::move(uses)});
      return true;
    });
  }
  return free;
}

Status PageHeap::claim(Owner& owner, const Place& place, bool waits) {
  const auto is_past_all = [&](const Chunk& chunk, Range home) WEIR_REQUIRES(mutex_) {
    return chunk.freed.visit(
        home, [&](const FreedRange& freed) WEIR_REQUIRES(mutex_) { return is_past(owner, freed); });
  };
  // (Where uses need not be told, more than the wait depends on whose the bytes were.)
  if (waits && !single_timeline_ && (trusts_context_ || !visit_parts(place, is_past_all))) {
    if (Status status = wait_for(owner, place); !status) return status;
  }
  (void)visit_parts(place, [&](Chunk& chunk, Range home) WEIR_REQUIRES(mutex_) {
    chunks_.use(&chunk, home);
    pages_.use(home, owner.id, [&](Page& page, bool leases) WEIR_REQUIRES(mutex_) {
      if (keeps_used_ && page.kept == Page::Kept::no) {
        page.kept = Page::Kept::for_now;
        keeps_any_ = true;
      }
      if (!leases) return;
      observer_.emit(
          owner.fold,
          Event{.kind = EventKind::lease, .plain = plain_, .page = page.id, .bytes = page.size});
    });
    return true;
  });
  if (place.row != nullptr) rows_.use(*place.row, requests_);
  addresses_.add_run(place.run, owner.id);
  return {};
}

Status PageHeap::wait_for(Owner& owner, const Place& place) {
  FenceSet fences;
  (void)visit_parts(place, [&](const Chunk& chunk, Range home) {
    collect(owner, chunk, home, fences);
    return true;
  });
  if (fences.empty()) return {};
  // What a stream has waited for says nothing of what is captured on it.
  if (trusts_context_ && may_wait()) {
    if (Status free = timelines_.not_captured(owner.timeline); !free) return free;
  }
  for (const Fence fence : fences) {
    if (is_past(owner, fence)) continue;
    FenceSet one;
    one.join(fence);
    if (Status status = timelines_.wait(owner.timeline, one, &owner.fold, &owner.waited); !status) {
      return status;
    }
  }
  return {};
}

bool PageHeap::is_barred(const Owner& owner, const Chunk& chunk, Range home) const {
  if (!trusts_context_ || !keeps_any_) return false;
  const auto stream = [&](TimelineId timeline) {
    return timelines_.stream(timeline).outside_capture().id;
  };
  const std::uint64_t mine = stream(owner.timeline);
  bool barred = false;
  pages_.walk(home, [&](const Page& page, Bytes offset, Bytes size) {
    if (barred || page.kept == Page::Kept::no) return;
    barred = !chunk.freed.visit({page.home + offset, size}, [&](const FreedRange& freed) {
      return stream(freed.use.by) == mine;
    });
  });
  return barred;
}

bool PageHeap::is_in_foreign_capture(const Owner& owner) {
  return !single_timeline_ && !timelines_.not_captured(owner.timeline);
}

bool PageHeap::is_in_use(const Owner& owner, const Chunk& chunk, Range home) {
  return is_barred(owner, chunk, home) ||
         !chunk.freed.visit(home, [&](const FreedRange& freed)
                                      WEIR_REQUIRES(mutex_) { return is_past(owner, freed); });
}

bool PageHeap::is_settled(const Owner& owner, const Chunk& chunk, Range home) {
  if (idle_only_) return timelines_.is_seen_complete(users_of(home));
  FenceSet fences;
  collect(owner, chunk, home, fences);
  if (fences.empty()) return true;
  return (!over_only_ && timelines_.satisfied(fences, owner.timeline)) ||
         timelines_.is_seen_complete(fences);
}

bool PageHeap::is_refused(const Owner& owner, const Chunk& chunk, Range home) {
  if (!checks_each_chunk_) return false;
  return is_barred(owner, chunk, home) || (!may_wait() && !is_settled(owner, chunk, home)) ||
         waits_for_remote_work(owner, chunk, home);
}

// An event that was recorded before that work was queued does not cover it, and may be over.
bool PageHeap::waits_for_remote_work(const Owner& owner, const Chunk& chunk, Range home) {
  if (remote_ == Remote::takes) return false;
  FenceSet needed, of_context;
  collect(owner, chunk, home, needed);
  for (const Fence fence : needed) {
    if (timelines_.stream(fence.timeline).is_all() && !is_past(owner, fence))
      of_context.join(fence);
  }
  if (of_context.empty()) return false;
  if (remote_ == Remote::not_asked) {
    remote_ = remote_work_.goes_on() ? Remote::avoids : Remote::takes;
  }
  if (remote_ == Remote::takes) return false;
  if (!timelines_.is_seen_complete(of_context)) return true;
  past_count_ = 0;  // it is further than was known
  return false;
}

// The latest time, in requests, at which bytes of it were freed.
std::uint64_t PageHeap::freed_at(const Chunk& chunk, Range home) {
  std::uint64_t latest = 0;
  (void)chunk.freed.visit(home, [&](const FreedRange& freed) {
    latest = std::max(latest, freed.use.freed_at);
    return true;
  });
  return latest;
}

}  // namespace weir
