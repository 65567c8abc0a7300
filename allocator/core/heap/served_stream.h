// SPDX-License-Identifier: Apache-2.0
// Whom a stream heap works for, and what that stream waits for before memory that the heap has
// already serves it again: a cached block, or a slot of a slab, which other streams were named for.
// (Memory that comes from the page heap was waited for there: reuse.h.) One record for the heap's
// parts.
//
// Where uses need not be told, a graph is not ordered behind what its stream was made to wait for.
// So these waits are remembered until they are seen to be over, and every request asks meanwhile
// whether the stream is in a capture that nobody announced.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/mutex.h"
#include "core/memory/block_uses.h"
#include "core/memory/page_heap.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// The heap's lock guards all but `id` and `pool`.
struct ServedStream {
  ServedStream(HeapId heap, std::uint64_t stream_id, MemoryKind memory, Observer& tells,
               Mutex* lock)
      : id(heap),
        observer(tells),
        fold(tells.fold(), heap, stream_id, memory == MemoryKind::plain, lock) {}

  const HeapId id;
  // Of its pool: these three change while the heap serves no stream and has no blocks, with the
  // registry's lock held as well. Null, and 0, while the heap is of no pool.
  std::atomic<std::uint64_t> pool{0};  // GraphPool::id(); 0 for the device heap's own as well
  PageHeap* pages = nullptr;
  Timelines* timelines = nullptr;

  Stream stream;            // that it serves, or served last
  TimelineId timeline;      // orders the work of the stream
  std::uint32_t epoch = 0;  // of captures, as the pool numbers them
  Observer& observer;
  HeapFold fold;

  // Before bytes that carry `uses` serve the next block: makes the stream wait or, where no request
  // waits, checks that nobody is to be waited for. Then `uses` is null.
  // Errors: capture (this memory can't be waited for); device.
  Status wait_for(BlockUsesPtr& uses) { return uses ? wait_and_clear(uses) : Status{}; }
  // Is it only that this memory can't be waited for?
  static bool is_in_the_way(const Status& status) {
    return !status && status.error().code() == ErrorCode::capture;
  }
  // Is nobody to be waited for, as far as is known or can be seen now?
  bool is_settled(const FenceSet& fences) const;
  // The stream was made to wait for these. Under Trust::told nothing is noted.
  void note_waits(const FenceSet& fences) {
    if (!fences.empty() && timelines->trust() != Trust::told) waits_.join(fences);
  }
  // Are there waits that were not seen to be over?
  bool has_waits() const { return !waits_.empty(); }
  // To be asked if has_waits(): is the stream in a capture that nobody announced? (Now and then
  // this looks whether the waits are over.)
  bool is_captured();
  void forget_waits() { waits_.clear(); }

 private:
  Status wait_and_clear(BlockUsesPtr& uses);

  FenceSet waits_;
  std::uint32_t asked_ = 0;
};

}  // namespace weir
