// SPDX-License-Identifier: Apache-2.0
// Whom a stream heap works for: one record for the heap's parts.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/mutex.h"
#include "core/memory/page_heap.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
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
};

}  // namespace weir
