// SPDX-License-Identifier: Apache-2.0
#include "weir/event.h"

#include <array>
#include <cstddef>

namespace weir {

namespace {

// In the order of EventKind.
constexpr std::array<std::string_view, kEventKinds> kEventNames = {"allocate",
                                                                   "deallocate",
                                                                   "fence",
                                                                   "stream_wait",
                                                                   "host_wait",
                                                                   "create",
                                                                   "release",
                                                                   "map",
                                                                   "unmap",
                                                                   "lease",
                                                                   "unlease",
                                                                   "trim",
                                                                   "out_of_memory",
                                                                   "heap_open",
                                                                   "pool_open",
                                                                   "pool_close",
                                                                   "capture_begin",
                                                                   "capture_end",
                                                                   "context_events_lost",
                                                                   "region_elsewhere",
                                                                   "keep"};
static_assert(!kEventNames.back().empty());

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

std::string_view name_of(EventKind kind) {
  const auto number = static_cast<std::size_t>(kind);
  return number < kEventNames.size() ? kEventNames[number] : "unknown";
}

std::string_view name_of(ContextEventsLost why) { return words_of(why).name; }
std::string_view reason_of(ContextEventsLost why) { return words_of(why).reason; }
std::string_view remedy_of(ContextEventsLost why) { return words_of(why).remedy; }

}  // namespace weir
