// SPDX-License-Identifier: Apache-2.0
#include "core/device_heap/fences.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace weir {

Status Fences::refuse(Stream stream, const char* call) {
  if (Status one = Entrance::refuse_all(stream, call); !one) return one;
  return entrance_.refuse_captured(stream, call);
}

Status Fences::note_use(void* block, Stream user, Fenced fenced, const char* call, bool unsure) {
  const Address at = Address::of(block);
  StreamHeap* const heap = registry_.owner_of(at);
  if (heap == nullptr) return Pools::unknown(block, call);
  const std::shared_ptr<CapturePool> pool = pools_.graph_pool(heap->pool());
  Result<UsedIn> where = entrance_.used_in(user, pool.get());
  if (!where && unsure) where = UsedIn::other_capture;
  if (!where) return where.error();
  if (pool != nullptr) {
    const Result<bool> noted = pool->note_use(*heap, at, user, *where, fenced);
    if (!noted) return noted.error();
    return *noted ? Status{} : Pools::unknown(block, call);
  }
  if (*where != UsedIn::eager) {
    // A graph may use it whenever it is launched: its free waits for the capture's end at least.
    if (!heap->live(at)) return Pools::unknown(block, call);
    pools_.shared().waiting.note_captured_use(at, pools_.bindings().last());
    // What a capture uses may be used there after the capture too.
    if (fenced == Fenced::now) return {};
  }
  const TimelineId by = timelines_.of(user);
  const LiveBlock live = heap->live(at, &timelines_);
  return live ? live.note_use(by, fenced) : Pools::unknown(block, call);
}

Status Fences::record_stream(void* block, Stream user) {
  if (block == nullptr) return {};
  if (Status one = Entrance::refuse_all(user, "record_stream"); !one) return one;
  return note_use(block, user, Fenced::at_free, "record_stream");
}

// One event each: uses of the blocks count in several times.
Status Fences::fence_each(std::span<void* const> blocks, Stream user) {
  for (const void* block : blocks) {
    if (block == nullptr) continue;
    if (Result<StreamHeap*> owner = pools_.heap_of(block, "fence"); !owner) {
      return std::move(owner).error();
    }
  }
  for (void* const block : blocks) {
    if (block == nullptr) continue;
    if (Status fenced = note_use(block, user, Fenced::now, "fence"); !fenced) return fenced;
  }
  return {};
}

bool Fences::differ(std::span<void* const> blocks) const {
  return entrance_.bound() || std::any_of(blocks.begin(), blocks.end(), [&](const void* block) {
           const StreamHeap* const heap = registry_.owner_of(Address::of(block));
           return heap != nullptr && heap->pool() != 0;
         });
}

Status Fences::fence_together(std::span<void* const> blocks, Stream user) {
  std::vector<std::pair<StreamHeap*, Address>> used;
  for (void* const block : blocks) {
    if (block == nullptr) continue;  // what allocate() gives for zero bytes
    Result<StreamHeap*> owner = pools_.heap_of(block, "fence");
    if (!owner) return std::move(owner).error();
    used.emplace_back(*owner, Address::of(block));
  }
  // On the blocks' own stream it is implied by deallocate().
  const StreamHeap* const own = pools_.own().find(user.id);
  const bool implied =
      std::all_of(used.begin(), used.end(), [&](const auto& each) { return each.first == own; });
  const TimelineId timeline = timelines_.of(user);
  Result<Fence> fence = implied ? timelines_.now(timeline) : timelines_.record(timeline);
  if (!fence) return std::move(fence).error();
  for (const auto& [heap, block] : used) {
    if (const LiveBlock live = heap->live(block, &timelines_)) live.add(*fence);
  }
  return {};
}

Status Fences::fence(std::span<void* const> blocks, Stream user) {
  if (Status one = Entrance::refuse_all(user, "fence"); !one) return one;
  if (blocks.size() == 1 && blocks[0] != nullptr) {
    return note_use(blocks[0], user, Fenced::now, "fence");
  }
  if (differ(blocks)) return fence_each(blocks, user);
  return blocks.empty() ? Status{} : fence_together(blocks, user);
}

Status Fences::fence_around_each(std::span<const void* const> pointers, Stream user, bool now) {
  std::vector<void*> blocks;
  for (const void* const pointer : pointers) {
    const std::optional<BlockInfo> block = pools_.find(Address::of(pointer));
    if (block) blocks.push_back(block->address.pointer());
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  Status first;
  for (void* const block : blocks) {
    if (now && note_use(block, user, Fenced::now, "fence")) continue;
    Status noted = note_use(block, user, Fenced::at_free, "fence", /*unsure=*/true);
    if (!noted && first) first = std::move(noted);
  }
  return first;
}

Result<std::optional<Fence>> Fences::fence_use(std::span<const void* const> pointers, Stream user,
                                               bool exact) {
  if (Status one = Entrance::refuse_all(user, "fence_use"); !one) return std::move(one).error();
  const StreamHeap* const own = pools_.own().find(user.id);
  const bool bound = entrance_.bound();
  bool others = false, of_graph_pools = false;
  for (const void* const pointer : pointers) {
    const StreamHeap* const heap = registry_.owner_of(Address::of(pointer));
    if (heap == nullptr || heap == own) continue;
    others = true;
    of_graph_pools = of_graph_pools || heap->pool() != 0;
  }
  if (bound || of_graph_pools) {
    const Result<bool> captured = bound ? entrance_.is_captured(user) : Result<bool>(false);
    if (Status fenced = fence_around_each(pointers, user, captured.ok()); !fenced || !captured) {
      return fenced ? captured.error() : fenced.error();
    }
    if (*captured) return std::optional<Fence>();
    others = false;  // they have their fences
  }
  const TimelineId timeline = timelines_.of(user);
  const Result<Fence> recorded =
      exact || others ? timelines_.record(timeline) : Result<Fence>(timelines_.now(timeline));
  if (!recorded) {
    if (!others) return std::optional<Fence>();
    Status noted = fence_around_each(pointers, user, false);
    return noted ? Result(std::optional<Fence>()) : std::move(noted).error();
  }
  if (!others) return std::optional(*recorded);
  Address last;  // once for each block, where pointers into it come one after the other
  for (const void* const pointer : pointers) {
    StreamHeap* const heap = registry_.owner_of(Address::of(pointer));
    if (heap == nullptr || heap == own) continue;
    const LiveBlock live = heap->live_around(Address::of(pointer), &timelines_);
    const Address begin = live ? live.ref().begin() : Address{};
    if (live && begin != last) live.add(*recorded);
    last = begin;
  }
  return std::optional(*recorded);
}

Status Fences::wait(Stream waiter, Fence fence) {
  if (Status eager = refuse(waiter, "wait"); !eager) return eager;
  return timelines_.wait(timelines_.of(waiter), fence);
}

void Fences::note_waited(Stream waiter, Fence fence) {
  if (refuse(waiter, "note_waited")) timelines_.note_waited(timelines_.of(waiter), fence);
}

Status Fences::order(Stream earlier, Stream later) {
  for (const Stream stream : {earlier, later}) {
    if (Status eager = refuse(stream, "order"); !eager) return eager;
  }
  if (earlier == later) return {};
  Result<Fence> fence = timelines_.record(timelines_.of(earlier));
  if (!fence) return std::move(fence).error();
  return timelines_.wait(timelines_.of(later), *fence);
}

// The point is free: an event is recorded when somebody asks about it. On a stream that may be gone
// by then it is recorded now.
void Fences::note_remote_work(Stream stream) {
  if (timelines_.trust() == Trust::told || !refuse(stream, "note_remote_work")) return;
  const TimelineId timeline = timelines_.of(stream);
  if (!stream.may_end) return pools_.shared().remote_work.note(timelines_.now(timeline));
  if (const Result<Fence> end = timelines_.record(timeline)) pools_.shared().remote_work.note(*end);
}

}  // namespace weir
