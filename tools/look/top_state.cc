// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "look/top.h"

namespace weir {
namespace {

// Down to zero: events may be missing.
void lower(Bytes& from, Bytes by) { from -= std::min(from, by); }
void lower(std::uint64_t& from) { from -= from > 0 ? 1 : 0; }

}  // namespace

template <class Change>
void TopState::change(std::uint64_t stream, std::uint64_t pool, Change&& change) {
  change(now_.all);
  change(now_.streams[stream]);
  if (pool != 0) change(now_.pools[pool]);
}

void TopState::apply(const Event& event, bool initial) {
  if (!begun_) now_.begin = event.time, begun_ = true;
  now_.end = std::max(now_.end, event.time);
  switch (event.kind) {
    case EventKind::allocate:
    case EventKind::deallocate:
    case EventKind::fence:
      return apply_to_blocks(event, initial);
    case EventKind::heap_open:
      heaps_[event.heap.value] = {event.stream, event.pool};
      return;
    case EventKind::stream_wait:
    case EventKind::host_wait:
    case EventKind::out_of_memory:
      return apply_waits(event);
    default:
      return apply_to_pages(event, initial);
  }
}

void TopState::apply_to_blocks(const Event& event, bool initial) {
  const auto block = blocks_.find(event.address.value);
  if (event.kind == EventKind::fence) {
    if (block == blocks_.end()) return;
    return change(block->second.stream, block->second.pool, [](TopCounts& c) { ++c.fences; });
  }
  // A block at the address of one that is live shows that its deallocation was missed.
  if (block != blocks_.end()) {
    const Block gone = block->second;
    blocks_.erase(block);
    lower(now_.requested, gone.requested);
    change(gone.stream, gone.pool, [&](TopCounts& c) {
      lower(c.blocks);
      lower(c.live, gone.bytes);
      ++c.deallocations;
    });
  }
  if (event.kind == EventKind::deallocate) return;
  HeapServes& heap = heaps_[event.heap.value];
  heap.stream = event.stream;
  const std::uint64_t pool = event.pool != 0 ? event.pool : heap.pool;
  blocks_[event.address.value] = {event.bytes, event.requested, event.stream, pool};
  now_.requested += event.requested;
  change(event.stream, pool, [&](TopCounts& c) {
    ++c.blocks;
    c.live += event.bytes;
    if (initial) return;
    ++c.allocations;
    c.allocated += event.bytes;
  });
  now_.peak_live = std::max(now_.peak_live, now_.all.live);
}

void TopState::apply_waits(const Event& event) {
  if (event.kind == EventKind::stream_wait) {
    const auto heap = heaps_.find(event.heap.value);
    const std::uint64_t pool =
        heap != heaps_.end() && heap->second.stream == event.stream ? heap->second.pool : 0;
    change(event.stream, pool, [](TopCounts& c) { ++c.waits; });
  } else if (event.kind == EventKind::host_wait) {
    ++now_.host_waits;
    now_.host_wait_time += event.duration;
  } else {
    ++now_.out_of_memory;
  }
}

void TopState::apply_to_pages(const Event& event, bool initial) {
  const auto lease = leases_.find(event.page.value);
  switch (event.kind) {
    case EventKind::create:
      ++now_.pages;
      now_.created += initial ? 0 : 1;
      now_.reserved += event.bytes;
      now_.idle += event.bytes;
      now_.peak_reserved = std::max(now_.peak_reserved, now_.reserved);
      return;
    case EventKind::release:
      lower(now_.pages);
      ++now_.released;
      lower(now_.reserved, event.bytes);
      return lower(now_.idle, event.bytes);
    case EventKind::map:
      ++now_.mappings;
      return;
    case EventKind::unmap:
      return lower(now_.mappings);
    case EventKind::lease: {
      if (lease != leases_.end()) return;
      const HeapServes heap = leases_[event.page.value] = heaps_[event.heap.value];
      lower(now_.idle, event.bytes);
      return change(heap.stream, heap.pool, [&](TopCounts& c) { c.leased += event.bytes; });
    }
    case EventKind::unlease: {
      if (lease == leases_.end()) return;
      const HeapServes heap = lease->second;
      leases_.erase(lease);
      now_.idle += event.bytes;
      return change(heap.stream, heap.pool, [&](TopCounts& c) { lower(c.leased, event.bytes); });
    }
    default:
      return;
  }
}

}  // namespace weir
