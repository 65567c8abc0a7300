// SPDX-License-Identifier: Apache-2.0
// Which work uses a block: fences, and waits for them.
#include <algorithm>
#include <utility>

#include "core/device_heap/device_heap_impl.h"

namespace weir {

Status DeviceHeap::Impl::refuse_all(Stream stream, const char* call) {
  if (!stream.is_all()) [[likely]]
    return {};
  return Error(
      ErrorCode::invalid_argument,
      std::string(call) + ": Stream::all() is no stream of the program's: name each stream");
}

Result<bool> DeviceHeap::Impl::fence_in_its_epoch(StreamHeap& heap, Address block, Stream user) {
  const std::shared_ptr<CapturePool> pool = heap.capture_pool();
  if (!bound()) {
    if (pool == nullptr) return heap.fence(block, timelines_, timelines_.of(user));
    return pool->fence(heap, block, user, false);
  }
  Result<bool> captured = is_captured(user);
  if (!captured) return std::move(captured).error();
  if (pool != nullptr) {
    const Result<bool> own = *captured ? is_captured_into(*pool, user) : Result<bool>(false);
    if (!own) return own.error();
    // In another pool's capture no fence can be taken: the block's free takes it.
    if (*captured && !*own) return pool->record_stream(heap, block, user, false);
    return pool->fence(heap, block, user, *own);
  }
  if (!*captured) return heap.fence(block, timelines_, timelines_.of(user));
  // A graph may use it whenever it is launched: its free waits for the end of the capture at least.
  if (!heap.has(block)) return false;
  deferred_.note_captured_use(block);
  return true;
}

// One event each: the blocks may be of several epochs.
Status DeviceHeap::Impl::fence_each(std::span<void* const> blocks, Stream user) {
  for (const void* block : blocks) {
    if (block == nullptr) continue;
    if (Result<StreamHeap*> owner = owner_of_block(block, "fence"); !owner) {
      return std::move(owner).error();
    }
  }
  for (void* const block : blocks) {
    if (block == nullptr) continue;
    if (Status fenced = fence_one(block, user); !fenced) return fenced;
  }
  return {};
}

Status DeviceHeap::Impl::fence_one(void* block, Stream user) {
  StreamHeap* const heap = owner_of(Address::of(block));
  if (heap == nullptr) return unknown(block, "fence");
  Result<bool> fenced = fence_in_its_epoch(*heap, Address::of(block), user);
  if (!fenced) return std::move(fenced).error();
  if (!*fenced) return unknown(block, "fence");
  return {};
}

// Must each of the blocks be asked which epoch it is of?
bool DeviceHeap::Impl::of_several_epochs(std::span<void* const> blocks) const {
  return bound() || std::any_of(blocks.begin(), blocks.end(), [&](const void* block) {
           const StreamHeap* const heap = owner_of(Address::of(block));
           return heap != nullptr && heap->pool() != 0;
         });
}

// All of them, or the first that is none.
Result<std::vector<DeviceHeap::Impl::Used>> DeviceHeap::Impl::find_used(
    std::span<void* const> blocks, const char* call) const {
  std::vector<Used> used;
  for (void* const block : blocks) {
    if (block == nullptr) continue;  // what allocate() gives for zero bytes
    Result<StreamHeap*> owner = owner_of_block(block, call);
    if (!owner) return std::move(owner).error();
    used.push_back({*owner, Address::of(block)});
  }
  return used;
}

Status DeviceHeap::Impl::fence(std::span<void* const> blocks, Stream user) {
  if (Status one = refuse_all(user, "fence"); !one) return one;
  if (blocks.size() == 1 && blocks[0] != nullptr) return fence_one(blocks[0], user);
  if (of_several_epochs(blocks)) return fence_each(blocks, user);
  Result<std::vector<Used>> used = find_used(blocks, "fence");
  if (!used) return std::move(used).error();
  if (blocks.empty()) return {};
  // On the blocks' own stream it is implied by deallocate().
  const StreamHeap* const own = device_pool_.find(user.id);
  const bool implied =
      std::all_of(used->begin(), used->end(), [&](const Used& each) { return each.heap == own; });
  const TimelineId timeline = timelines_.of(user);
  Result<Fence> fence = implied ? timelines_.now(timeline) : timelines_.record(timeline);
  if (!fence) return std::move(fence).error();
  for (const Used& each : *used) (void)each.heap->fence(each.block, timelines_, *fence);
  return {};
}

Result<Fence> DeviceHeap::Impl::take_fence(std::span<void* const> blocks, Stream user) {
  if (Status one = refuse_all(user, "take_fence"); !one) return std::move(one).error();
  if (Status eager = refuse_captured(user, "take_fence"); !eager) return std::move(eager).error();
  const bool one_by_one = of_several_epochs(blocks);
  std::vector<Used> used;
  if (one_by_one) {
    if (Status fenced = fence_each(blocks, user); !fenced) return std::move(fenced).error();
  } else {
    Result<std::vector<Used>> found = find_used(blocks, "take_fence");
    if (!found) return std::move(found).error();
    used = *std::move(found);
  }
  Result<Fence> fence = timelines_.record(timelines_.of(user));
  if (!fence) return std::move(fence).error();
  for (const Used& each : used) (void)each.heap->fence(each.block, timelines_, *fence);
  return fence;
}

// Once for each block, where pointers into it come one after the other.
Result<Fence> DeviceHeap::Impl::take_fence_around(std::span<const void* const> pointers,
                                                  Stream user) {
  if (Status one = refuse_all(user, "take_fence_around"); !one) return std::move(one).error();
  const bool of_several_epochs =
      bound() || std::any_of(pointers.begin(), pointers.end(), [&](const void* pointer) {
        const StreamHeap* const heap = owner_of(Address::of(pointer));
        return heap != nullptr && heap->pool() != 0;
      });
  if (of_several_epochs) return take_fence(blocks_around(pointers), user);
  Result<Fence> fence = timelines_.record(timelines_.of(user));
  if (!fence) return fence;
  Address last;
  for (const void* const pointer : pointers) {
    StreamHeap* const heap = owner_of(Address::of(pointer));
    if (heap != nullptr) last = heap->fence_around(Address::of(pointer), timelines_, *fence, last);
  }
  return fence;
}

// Each once.
std::vector<void*> DeviceHeap::Impl::blocks_around(std::span<const void* const> pointers) const {
  std::vector<void*> starts;
  for (const void* const pointer : pointers) {
    const std::optional<BlockInfo> block = find(Address::of(pointer));
    if (block) starts.push_back(block->address.pointer());
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  return starts;
}

Status DeviceHeap::Impl::wait(Stream waiter, Fence fence) {
  if (Status one = refuse_all(waiter, "wait"); !one) return one;
  if (Status eager = refuse_captured(waiter, "wait"); !eager) return eager;
  return timelines_.wait(timelines_.of(waiter), fence);
}

void DeviceHeap::Impl::note_waited(Stream waiter, Fence fence) {
  if (waiter.is_all() || !refuse_captured(waiter, "note_waited")) return;
  timelines_.note_waited(timelines_.of(waiter), fence);
}

Status DeviceHeap::Impl::order(Stream earlier, Stream later) {
  for (const Stream stream : {earlier, later}) {
    if (Status one = refuse_all(stream, "order"); !one) return one;
    if (Status eager = refuse_captured(stream, "order"); !eager) return eager;
  }
  if (earlier == later) return {};
  Result<Fence> fence = timelines_.record(timelines_.of(earlier));
  if (!fence) return std::move(fence).error();
  return timelines_.wait(timelines_.of(later), *fence);
}

// The point is free: an event is recorded when somebody asks about it. On a stream that may be gone
// by then it is recorded now.
void DeviceHeap::Impl::note_remote_work(Stream stream) {
  if (options_.trust == Trust::told || stream.is_all() ||
      !refuse_captured(stream, "note_remote_work"))
    return;
  const TimelineId timeline = timelines_.of(stream);
  if (!stream.may_end) return remote_work_.note(timelines_.now(timeline));
  if (const Result<Fence> end = timelines_.record(timeline)) remote_work_.note(*end);
}

Status DeviceHeap::Impl::refuse_captured(Stream stream, const char* call) {
  if (!bound()) return {};
  Result<bool> captured = is_captured(stream);
  if (!captured) return std::move(captured).error();
  if (!*captured) return {};
  return Error(ErrorCode::capture, std::string(call) + ": stream " + std::to_string(stream.id) +
                                       " is being captured, where eager points mean nothing: the "
                                       "graph's edges order its work");
}

}  // namespace weir
