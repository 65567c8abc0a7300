// SPDX-License-Identifier: Apache-2.0
// What a program says of captures and graphs that the device heap does not see by itself, and what
// it hears of them: DeviceHeap::captures().
#pragma once

#include <cstdint>
#include <functional>

#include "weir/device.h"
#include "weir/event.h"
#include "weir/heap_types.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class DeviceHeap;

// Threads: as DeviceHeap, which must outlive it.
class HeapCaptures {
 public:
  explicit HeapCaptures(DeviceHeap& heap) : heap_(&heap) {}

  // Whether the stream is captured is asked from now on, before an event of the whole context is
  // recorded; of streams that something was allocated for, it is in any case, unless that named
  // them as ones that may end.
  void meet(Stream stream);

  // The graph pool whose binding takes requests on `stream` now, from this thread (its id); 0: the
  // device heap itself serves them. Errors: device; capture (no graph pool serves its capture).
  Result<std::uint64_t> pool_serving(Stream stream);

  // Joins in the capture that `captured` is part of. Returns whether a CaptureScope will do as the
  // attachment says; of a capture that the program ends by itself the heap does not see the end.
  // Errors: capture (no graph pool serves it); device. None of them breaks the capture.
  Result<bool> attach(Stream captured, CaptureAttachment attachment);

  // From now on no event of the whole context is recorded, as one might break a capture that can't
  // be known of: HeapOptions::context_events. `stream`: Stream::id of the one that is the reason;
  // 0: none is.
  void forgo_context_events(ContextEventsLost why, std::uint64_t stream = 0);
  // Under Trust::context: called once for each reason why events of the whole context are given up,
  // by whatever finds it. Under the heap's locks: it must not block, and must not call back into
  // Weir.
  using ContextEventsLostCallback = std::function<void(ContextEventsLost why)>;
  void on_context_events_lost(ContextEventsLostCallback callback);

  // From now on graphs captured by a binding (GraphPool::capture) may never be destroyed, as in the
  // debug mode of PyTorch's graphs, which leaks them. Where the host waits for memory
  // (Trim::waits, or rather than be out of it), one that was released counts as done with the work
  // so far of all streams that the heap knows.
  void assume_graphs_leak();

 private:
  DeviceHeap* heap_;
};

}  // namespace weir
