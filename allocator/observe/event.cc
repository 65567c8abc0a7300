// SPDX-License-Identifier: Apache-2.0
#include "weir/event.h"

namespace weir {

std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::allocate:
      return "allocate";
    case EventKind::deallocate:
      return "deallocate";
    case EventKind::fence:
      return "fence";
    case EventKind::stream_wait:
      return "stream_wait";
    case EventKind::host_wait:
      return "host_wait";
    case EventKind::create:
      return "create";
    case EventKind::release:
      return "release";
    case EventKind::map:
      return "map";
    case EventKind::unmap:
      return "unmap";
    case EventKind::lease:
      return "lease";
    case EventKind::unlease:
      return "unlease";
    case EventKind::trim:
      return "trim";
    case EventKind::out_of_memory:
      return "out_of_memory";
    case EventKind::heap_open:
      return "heap_open";
    case EventKind::pool_open:
      return "pool_open";
    case EventKind::pool_close:
      return "pool_close";
    case EventKind::capture_begin:
      return "capture_begin";
    case EventKind::capture_end:
      return "capture_end";
    case EventKind::context_events_lost:
      return "context_events_lost";
    case EventKind::region_elsewhere:
      return "region_elsewhere";
  }
  return "unknown";
}

namespace {

struct Words {
  std::string_view name, reason, remedy;
};

Words words_of(ContextEventsLost why) {
  switch (why) {
    case ContextEventsLost::external_stream:
      return {"external_stream",
              "a non-blocking stream was used that its owner may destroy at any time, so Weir "
              "can't ask later whether the stream is captured",
              "use a stream of PyTorch's pool (torch.cuda.Stream()), or a blocking stream "
              "(cudaStreamCreate)"};
    case ContextEventsLost::unannounced_capture:
      return {"unannounced_capture", "a stream was captured, and no capture had been announced",
              "capture with torch.cuda.graph, CUDAGraph.capture_begin or weir::CaptureScope"};
    case ContextEventsLost::refused:
      return {"refused",
              "the driver refused such an event, as a stream that Weir does not know is captured",
              "capture with torch.cuda.graph, CUDAGraph.capture_begin or weir::CaptureScope; if "
              "another library captures, set WEIR_CONTEXT_EVENTS=0"};
    case ContextEventsLost::unavailable:
      return {"unavailable", "the driver has no such events", "use a driver of CUDA 12.5 or later"};
    case ContextEventsLost::pluggable:
      return {"pluggable", "the pluggable library is not told which streams are PyTorch's own",
              "use the full backend (weir.enable(\"full\"))"};
  }
  return {"unknown", "a later version of Weir names a reason that this one does not know",
          "read the recording with that version"};
}

}  // namespace

std::string_view name_of(ContextEventsLost why) { return words_of(why).name; }
std::string_view reason_of(ContextEventsLost why) { return words_of(why).reason; }
std::string_view remedy_of(ContextEventsLost why) { return words_of(why).remedy; }

}  // namespace weir
