// SPDX-License-Identifier: Apache-2.0
// Calls about captures and graphs that the device heap does not see by itself:
// DeviceHeap::captures().
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

  // From now on the heap asks whether `stream` is captured before it records an event of the whole
  // context. Streams that memory was allocated for need no such call, unless the request marked
  // them Stream::may_end.
  void meet(Stream stream);

  // The id of the graph pool whose binding takes this thread's requests on `stream` now; 0: the
  // device heap itself serves them. Errors: device; capture (no graph pool serves its capture).
  Result<std::uint64_t> pool_serving(Stream stream);

  // Attaches to the capture that `captured` is part of. True: a CaptureScope ends that capture,
  // joins `forked` and keeps `resource`. False: the program ends it, unseen by the heap, so the
  // caller must do both.
  // Errors: capture (no graph pool serves it); device. None of them breaks the capture.
  Result<bool> attach(Stream captured, CaptureAttachment attachment);

  // From now on the heap records no event of the whole context, since one might break a capture
  // that it can't know of (HeapOptions::context_events). `stream`: Stream::id of the stream that is
  // the reason, or 0.
  void forgo_context_events(ContextEventsLost why, std::uint64_t stream = 0);
  // Under Trust::context the callback is called once for each reason why events of the whole
  // context are given up, under the heap's locks: it must not block, and must not call back into
  // Weir.
  using ContextEventsLostCallback = std::function<void(ContextEventsLost why)>;
  void on_context_events_lost(ContextEventsLostCallback callback);

  // From now on the heap expects that graphs captured by a binding (GraphPool::capture()) may never
  // be destroyed, as in the debug mode of PyTorch's graphs, which leaks them. Where the host waits
  // for memory (Trim::waits, or before a request fails), a released graph counts as done once the
  // work so far of all streams that the heap knows is done.
  void assume_graphs_leak();

 private:
  DeviceHeap* heap_;
};

}  // namespace weir
