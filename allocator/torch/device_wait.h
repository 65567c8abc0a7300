// Waiting for all work of a device, as cudaFree() does.
#pragma once

#include <span>

#include "weir/device.h"

namespace weir::pytorch {

// The host waits for the work of all streams of the device, known or not. Of a device that can't do
// that: for the work of `streams`. A template, so that a Device without synchronize_context()
// compiles.
template <class AnyDevice>
Status wait_for_all_work(AnyDevice& device, std::span<const Stream> streams = {}) {
  if constexpr (requires { device.synchronize_context(); }) {
    return device.synchronize_context();
  } else {
    for (const Stream stream : streams) {
      const Result<CaptureInfo> capture = device.capture_info(stream);
      if (!capture) return capture.error();
      if (capture->status != CaptureInfo::Status::none) {
        return Error(ErrorCode::capture, "a stream that used the memory is being captured");
      }
      Result<EventHandle> event = device.create_event();
      if (!event) return std::move(event).error();
      Status waited = device.record(*event, stream);
      if (waited) waited = device.synchronize(*event);
      (void)device.destroy_event(*event);
      if (!waited) return waited;
    }
    return {};
  }
}

}  // namespace weir::pytorch
