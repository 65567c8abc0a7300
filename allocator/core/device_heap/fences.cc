// SPDX-License-Identifier: Apache-2.0
// Which work uses a block, and in which order streams' work runs: the calls of DeviceHeap that take
// fences, and that wait for them.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/device_heap/device_heap_impl.h"

namespace weir {
namespace {

using Fenced = LiveBlock::Fenced;

// What these calls need of a device heap.
struct Parts {
  Pools& pools;
  Entrance& entrance;
  HeapRegistry& registry = pools.shared().registry;
  Timelines& timelines = pools.own().timelines();
};

Status expect_eager(const Parts& in, Stream stream, const char* call) {
  if (Status one = Entrance::refuse_all(stream, call); !one) return one;
  return in.entrance.refuse_captured(stream, call);
}

// `unsure`: where the driver does not say whether `user` is captured, the block's free waits as for
// a captured use, and for the stream's work. Otherwise that is an error.
Status note_use(const Parts& in, void* block, Stream user, Fenced fenced, const char* call,
                bool unsure = false) {
  const Address at = Address::of(block);
  StreamHeap* const heap = in.registry.owner_of(at);
  if (heap == nullptr) return in.pools.unknown(block, call);
  const std::shared_ptr<CapturePool> pool = in.pools.graph_pool(heap->pool());
  Result<UsedIn> where = in.entrance.used_in(user, pool.get());
  if (!where && unsure) where = UsedIn::other_capture;
  if (!where) return where.error();
  if (pool != nullptr) {
    const Result<bool> noted = pool->note_use(*heap, at, user, *where, fenced);
    if (!noted) return noted.error();
    return *noted ? Status{} : in.pools.unknown(block, call);
  }
  if (*where != UsedIn::eager) {
    // A graph may use it whenever it is launched: its free waits for the capture's end at least.
    if (!heap->live(at)) return in.pools.unknown(block, call);
    in.pools.shared().waiting.note_captured_use(at, in.pools.bindings().last());
    // What a capture uses may be used there after the capture too.
    if (fenced == Fenced::now) return {};
  }
  const TimelineId by = in.timelines.of(user);
  // (A LiveBlock holds the lock that find() takes.)
  if (const LiveBlock live = heap->live(at, &in.timelines)) return live.note_use(by, fenced);
  return in.pools.unknown(block, call);
}

// The blocks around the pointers. Where not `now`, or where a fence can't be taken now, the block
// takes it when it is deallocated. Errors: none but for lack of a block, which another thread
// freed.
Status fence_around_each(const Parts& in, std::span<const void* const> pointers, Stream user,
                         bool now) {
  std::vector<void*> blocks;
  for (const void* const pointer : pointers) {
    const std::optional<BlockInfo> block = in.pools.find(Address::of(pointer));
    if (block) blocks.push_back(block->address.pointer());
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  Status first;
  for (void* const block : blocks) {
    if (now && note_use(in, block, user, Fenced::now, "fence")) continue;
    Status noted = note_use(in, block, user, Fenced::at_free, "fence", /*unsure=*/true);
    if (!noted && first) first = std::move(noted);
  }
  return first;
}

}  // namespace

Status DeviceHeap::record_stream(void* block, Stream user) {
  if (block == nullptr) return {};
  if (Status one = Entrance::refuse_all(user, "record_stream"); !one) return one;
  return note_use({impl_->pools, impl_->entrance}, block, user, Fenced::at_free, "record_stream");
}

// One event for all blocks, and none if it is implied. Where uses of the blocks count in several
// times, as a binding is open or one is a graph pool's, one event each.
Status DeviceHeap::fence(std::span<void* const> blocks, Stream user) {
  const Parts in{impl_->pools, impl_->entrance};
  if (Status one = Entrance::refuse_all(user, "fence"); !one) return one;
  const StreamHeap* const own = in.pools.own().find(user.id);
  std::vector<std::pair<StreamHeap*, Address>> used;
  // On the blocks' own stream it is implied by deallocate().
  bool each = in.entrance.bound(), implied = true;
  for (void* const block : blocks) {
    if (block == nullptr) continue;  // what allocate() gives for zero bytes
    Result<StreamHeap*> heap = in.pools.heap_of(block, "fence");
    if (!heap) return std::move(heap).error();
    used.emplace_back(*heap, Address::of(block));
    each = each || (*heap)->pool() != 0;
    implied = implied && *heap == own;
  }
  if (each) {
    for (const auto& [heap, block] : used) {
      Status fenced = note_use(in, block.pointer(), user, Fenced::now, "fence");
      if (!fenced) return fenced;
    }
    return {};
  }
  if (used.empty()) return {};
  const TimelineId timeline = in.timelines.of(user);
  Result<Fence> fence = implied ? in.timelines.now(timeline) : in.timelines.record(timeline);
  if (!fence) return std::move(fence).error();
  for (const auto& [heap, block] : used) {
    if (const LiveBlock live = heap->live(block, &in.timelines)) live.add(*fence);
  }
  return {};
}

Result<std::optional<Fence>> DeviceHeap::fence_use(std::span<const void* const> pointers,
                                                   Stream user, bool exact) {
  const Parts in{impl_->pools, impl_->entrance};
  if (Status one = Entrance::refuse_all(user, "fence_use"); !one) return std::move(one).error();
  const StreamHeap* const own = in.pools.own().find(user.id);
  const bool bound = in.entrance.bound();
  bool others = false, of_graph_pools = false;
  for (const void* const pointer : pointers) {
    const StreamHeap* const heap = in.registry.owner_of(Address::of(pointer));
    if (heap == nullptr || heap == own) continue;
    others = true;
    of_graph_pools = of_graph_pools || heap->pool() != 0;
  }
  if (bound || of_graph_pools) {
    const Result<bool> captured = bound ? in.entrance.is_captured(user) : Result<bool>(false);
    if (Status fenced = fence_around_each(in, pointers, user, captured.ok());
        !fenced || !captured) {
      return fenced ? captured.error() : fenced.error();
    }
    if (*captured) return std::optional<Fence>();
    others = false;  // they have their fences
  }
  const TimelineId timeline = in.timelines.of(user);
  const Result<Fence> recorded =
      exact || others ? in.timelines.record(timeline) : Result<Fence>(in.timelines.now(timeline));
  if (!recorded) {
    if (!others) return std::optional<Fence>();
    Status noted = fence_around_each(in, pointers, user, false);
    return noted ? Result(std::optional<Fence>()) : std::move(noted).error();
  }
  if (!others) return std::optional(*recorded);
  Address last;  // once for each block, where pointers into it come one after the other
  for (const void* const pointer : pointers) {
    StreamHeap* const heap = in.registry.owner_of(Address::of(pointer));
    if (heap == nullptr || heap == own) continue;
    const LiveBlock live = heap->live_around(Address::of(pointer), &in.timelines);
    const Address begin = live ? live.ref().begin() : Address{};
    if (live && begin != last) live.add(*recorded);
    last = begin;
  }
  return std::optional(*recorded);
}

Status DeviceHeap::wait(Stream waiter, Fence fence) {
  const Parts in{impl_->pools, impl_->entrance};
  if (Status eager = expect_eager(in, waiter, "wait"); !eager) return eager;
  return in.timelines.wait(in.timelines.of(waiter), fence);
}

void DeviceHeap::note_waited(Stream waiter, Fence fence) {
  const Parts in{impl_->pools, impl_->entrance};
  if (expect_eager(in, waiter, "note_waited"))
    in.timelines.note_waited(in.timelines.of(waiter), fence);
}

Status DeviceHeap::order(Stream earlier, Stream later) {
  const Parts in{impl_->pools, impl_->entrance};
  for (const Stream stream : {earlier, later}) {
    if (Status eager = expect_eager(in, stream, "order"); !eager) return eager;
  }
  if (earlier == later) return {};
  Result<Fence> fence = in.timelines.record(in.timelines.of(earlier));
  if (!fence) return std::move(fence).error();
  return in.timelines.wait(in.timelines.of(later), *fence);
}

// The point is free: an event is recorded when somebody asks about it. On a stream that may be gone
// by then it is recorded now.
void DeviceHeap::note_remote_work(Stream stream) {
  const Parts in{impl_->pools, impl_->entrance};
  if (in.timelines.trust() == Trust::told || !expect_eager(in, stream, "note_remote_work")) return;
  const TimelineId timeline = in.timelines.of(stream);
  if (!stream.may_end) return in.pools.shared().remote_work.note(in.timelines.now(timeline));
  if (const Result<Fence> end = in.timelines.record(timeline))
    in.pools.shared().remote_work.note(*end);
}

}  // namespace weir
