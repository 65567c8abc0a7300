// SPDX-License-Identifier: Apache-2.0
// Streams of a device heap that may be captured: what they go by, and whether they are.
#include <optional>
#include <utility>

#include "core/device_heap/device_heap_impl.h"

namespace weir {

Result<Stream> DeviceHeap::Impl::per_thread_stream(void* handle) {
  if (options_.trust == Trust::told) {
    return Error(ErrorCode::invalid_argument,
                 "the per-thread default stream can't be used: its handle names another stream in "
                 "each thread, and memory is waited for by any; make a stream of your own");
  }
  Result<Stream> stream = device_.stream(handle);
  if (stream) stream->may_end = true;  // with its thread, which alone may name it
  return stream;
}

// Whether a stream lasts its owner knows best; of the default one it is sure.
Result<Stream> DeviceHeap::Impl::stream_in_a_capture(void* handle) {
  const bool may_end = is_untold() && handle != nullptr;
  const Result<CaptureInfo::Status> status = device_.capture_status(Stream::of_captured(handle));
  if (!status) return status.error();
  if (*status == CaptureInfo::Status::none) {
    Result<Stream> found = device_.stream(handle);
    if (!found) return found;
    // Under Trust::told it goes by the driver's id outside captures, whatever it went by in one.
    if (is_untold()) *found = names_.of(*found);
    found->may_end = may_end;
    return found;
  }
  const std::optional<Stream> named = names_.find(handle);
  std::optional<Stream> used;  // the last that had the handle, which may be gone all the same
  for (const Stream each : timelines_.streams()) {
    if (each.handle == handle) used = each;
  }
  if (used && (!is_untold() || !named || *named == *used)) return *used;
  Stream stream = named ? *named : names_.of_captured(handle);
  stream.may_end = may_end;
  return stream;
}

Status DeviceHeap::Impl::retire(Stream stream) {
  if (Status one = refuse_all(stream, "retire"); !one) return one;
  // The number that the stream may have beside the driver's id goes with it.
  const std::optional<Stream> own_number = names_.own_number(stream);
  for (const std::shared_ptr<CapturePool>& pool : pools()) {
    if (Status status = pool->retire(stream); !status) return status;
    if (!own_number) continue;
    if (Status status = pool->retire(*own_number); !status) return status;
  }
  if (own_number && timelines_.has_met(*own_number)) {
    if (Status status = device_pool_.retire(*own_number); !status) return status;
  }
  if (Status status = device_pool_.retire(stream); !status) return status;
  names_.forget(stream);
  return {};
}

Result<bool> DeviceHeap::Impl::is_captured(Stream stream) {
  // The handle of a retired stream may be nobody's any more, or another's. (A number of Weir's own
  // may be one that the device heap never met.)
  if (!stream.is_of_captured()) (void)timelines_.of(stream);
  if (timelines_.retired(stream)) return false;
  const Result<CaptureInfo::Status> status = device_.capture_status(stream);
  if (!status) return status.error();
  return *status != CaptureInfo::Status::none;
}

Result<bool> DeviceHeap::Impl::is_captured_into(const CapturePool& pool, Stream stream) {
  Result<bool> captured = is_captured(stream);
  if (!captured || !*captured) return captured;
  const Result<CaptureInfo> info = device_.capture_info(stream);
  if (!info) return info.error();
  const std::uint64_t known = bindings_.of_capture(pool, info->id);
  if (known != 0) return pool.is_capturing(known);
  return bindings_.find(stream, *info).get() == &pool && pool.capturing();
}

}  // namespace weir
