// SPDX-License-Identifier: Apache-2.0
// What a device heap did, one Event for each change. Statistics, recordings and pictures of them
// are made from these events. (Allocations and frees are counted where they happen; an Event is
// made of them only while a sink takes it.)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "weir/types.h"

namespace weir {

enum class EventKind : std::uint8_t {
  allocate,     // block `address`, `bytes` (rounded), `requested`, on `stream`; `pool` not 0:
                // for a launch of that graph pool, which lent the memory
  deallocate,   // the same block goes back, with its fences
  fence,        // work queued so far on `other` uses the block at `address`
  stream_wait,  // `stream` waits, on the GPU, for `other` up to `sequence`
  host_wait,    // the host waited for `other` up to `sequence`; took `duration`
  create,       // page `page` of `bytes` exists; graph pool `pool` lends its memory (0: none does)
  release,      // ... and is given back to the driver or lender (`bytes` and `pool` again)
  map,          // page `page` got a mapping of `bytes` at `address`, for a request of heap `heap`
  unmap,        // ... and loses it; if the driver refuses, `map` follows
  lease,        // heap `heap` is the first to use bytes of the idle page `page` of `bytes`
  unlease,      // page `page` of `bytes` is idle again; heap `heap` freed the last bytes in use
  trim,         // `bytes` were given back to the driver
  out_of_memory,  // `requested` on `stream` failed
  heap_open,      // heap `heap` serves `stream` from now on, for graph pool `pool` (0: for none)
  pool_open,      // graph pool `pool` is there
  pool_close,     // ... and nobody will allocate from it any more
  capture_begin,  // requests of captured streams go to graph pool `pool`
  capture_end,    // ... no longer
  context_events_lost,  // no event of the whole context is recorded from now on; `other`: why (a
                        // ContextEventsLost); `stream`: which one revealed it, or 0
  region_elsewhere,     // a pool has `bytes` of addresses at `address`, as the driver refused those
                        // that were meant (Addresses::prefer)
  keep,  // page `page` of `bytes` is lent no more: what graph pool `pool` lent stays with it
};
inline constexpr int kEventKinds = static_cast<int>(EventKind::keep) + 1;
std::string_view name_of(EventKind kind);
// What the program did, rather than Weir: recordings of one program are compared call by call.
constexpr bool is_call(EventKind kind) {
  return kind == EventKind::allocate || kind == EventKind::deallocate || kind == EventKind::fence ||
         kind == EventKind::out_of_memory;
}

// Why a heap gives up events of the whole context until its process ends. Its streams and pools
// then share memory only where the host waits (docs/guarantees.md).
enum class ContextEventsLost : std::uint8_t {
  external_stream,      // a non-blocking stream that may be destroyed at any time asked for memory
  unannounced_capture,  // a stream was being captured, and no binding was open for a capture
  refused,              // the device refused one, perhaps for a capture unknown to Weir
  unavailable,          // the driver has no such events
  pluggable,            // PyTorch's pluggable allocator can't tell whose streams it serves
};
inline constexpr int kContextEventsLost = static_cast<int>(ContextEventsLost::pluggable) + 1;
std::string_view name_of(ContextEventsLost why);
// What happened, and what the program or its user can do; each a clause without a full stop.
std::string_view reason_of(ContextEventsLost why);
std::string_view remedy_of(ContextEventsLost why);

// A kind fills the fields that are named above for it; what the others hold says nothing.
struct Event {
  EventKind kind = EventKind::allocate;
  bool plain = false;  // of pages (create to unlease) and heap_open: plain memory (MemoryKind)
  HeapId heap;
  PageId page;
  Nanoseconds time;
  std::uint64_t stream = 0;  // Stream::id
  std::uint64_t other = 0;   // Stream::id; of context_events_lost, a ContextEventsLost
  Address address;
  Bytes bytes;
  Bytes requested;
  Sequence sequence;
  Nanoseconds duration;
  std::uint64_t pool = 0;   // GraphPool::id()
  std::uint32_t stack = 0;  // of `allocate`: who asked, in a recording that has stacks; 0: unknown
};

class StackSource;  // weir/recorder.h

// Takes events as they happen. Called from any thread, sometimes under a heap's lock: it must not
// call Weir, and should not block, since allocating threads wait for it.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const Event& event) = 0;

  // Called before the first event, when the sink is added to a heap that holds something
  // (DeviceHeap::start_recording): what is there, as events of this moment. Unless a sink does
  // otherwise, they are events like the others.
  virtual void on_start(std::span<const Event> initial) {
    for (const Event& event : initial) on_event(event);
  }
  // The source of the stacks that Event::stack names; null: none is wanted. Outlives the heap.
  virtual StackSource* stacks() { return nullptr; }
};

}  // namespace weir
