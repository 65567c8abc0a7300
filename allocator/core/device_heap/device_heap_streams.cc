// SPDX-License-Identifier: Apache-2.0
// Streams of a device heap that may be captured: what they go by, and whether they are.
#include <mutex>
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
    if (found) found->may_end = may_end;
    return found;
  }
  if (const std::optional<Stream> known = timelines_.latest(handle)) return *known;
  const std::unique_lock lock(pools_mutex_);
  const auto [met, is_new] = met_in_captures_.try_emplace(handle);
  if (is_new) {
    met->second = Stream::of_captured(handle, ++last_met_);
    met->second.may_end = may_end;
  }
  return met->second;
}

// The stream goes, and with it the other name that it may have.
Status DeviceHeap::Impl::retire_in_pools(Stream stream) {
  std::optional<Stream> met;
  {
    const std::shared_lock lock(pools_mutex_);
    const auto known = met_in_captures_.find(stream.handle);
    if (known != met_in_captures_.end()) met = known->second;
  }
  for (const std::shared_ptr<CapturePool>& pool : pools()) {
    if (Status status = pool->retire(stream); !status) return status;
    if (!met) continue;
    if (Status status = pool->retire(*met); !status) return status;
  }
  const std::unique_lock lock(pools_mutex_);
  met_in_captures_.erase(stream.handle);
  return {};
}

Result<bool> DeviceHeap::Impl::is_captured(Stream stream) {
  // The handle of a retired stream may be nobody's any more, or another's.
  if (!stream.is_of_captured() && timelines_.retired(timelines_.of(stream))) return false;
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
