// SPDX-License-Identifier: Apache-2.0
#include "core/time/open_captures.h"

#include <string>
#include <utility>

namespace weir {
namespace {

Error all_streams(const std::string& why) {
  return {ErrorCode::capture, "the work of all streams can't be waited for now: " + why};
}

}  // namespace

std::uint64_t OpenCaptures::announce(std::optional<Stream> origin) {
  const MutexLock lock(mutex_);
  announced_[++last_] = {.origin = origin};
  return last_;
}

void OpenCaptures::ended(std::uint64_t announced) {
  const MutexLock lock(mutex_);
  announced_.erase(announced);
}

void OpenCaptures::note_begun(std::uint64_t announced) {
  const MutexLock lock(mutex_);
  if (const auto known = announced_.find(announced); known != announced_.end()) {
    known->second.begun = true;
  }
}

void OpenCaptures::meet(Stream stream) {
  if (stream.may_end || stream.is_all()) return;
  const MutexLock lock(mutex_);
  asked_.emplace(stream.id, stream);
}

void OpenCaptures::forget(Stream stream) {
  const MutexLock lock(mutex_);
  asked_.erase(stream.id);
}

Status OpenCaptures::not_captured(Stream stream) {
  Result<CaptureInfo> info = device_.capture_info(stream);
  if (!info) return std::move(info).error();
  if (info->status == CaptureInfo::Status::none) return {};
  {
    const MutexLock lock(mutex_);
    if (announced_.empty()) forgo_context_events();
  }
  return Error(ErrorCode::capture,
               "stream " + std::to_string(stream.id) +
                   " is being captured, and its earlier work can't be waited for meanwhile: free "
                   "its blocks before the capture begins, or after its end");
}

// One that was announced and is not there: it is about to begin; or it has ended, and whoever
// announced it failed to say so.
Result<bool> OpenCaptures::goes_on(Announced& announced) {
  if (!announced.origin || announced.origin->may_end) return true;
  const Result<CaptureInfo> info = device_.capture_info(*announced.origin);
  if (!info) return info.error();
  const bool captured = info->status != CaptureInfo::Status::none;
  const bool ended = announced.begun && !captured;
  announced.begun = announced.begun || captured;
  return !ended;
}

Status OpenCaptures::may_record_context() {
  if (!has_context_events()) {
    return Error(ErrorCode::unavailable,
                 "the work of all streams can't be waited for on the GPU in this process");
  }
  return none_goes_on_locked();
}

Status OpenCaptures::none_goes_on_locked() {
  for (auto& [number, announced] : announced_) {
    Result<bool> going_on = goes_on(announced);
    if (!going_on) return std::move(going_on).error();
    if (*going_on) return all_streams("a capture is going on");
  }
  for (const auto& [id, stream] : asked_) {
    const Result<CaptureInfo> info = device_.capture_info(stream);
    if (!info) continue;  // it is gone, and so is its capture
    if (info->status == CaptureInfo::Status::none) continue;
    if (announced_.empty()) forgo_context_events();
    return all_streams("stream " + std::to_string(id) + " is being captured");
  }
  return {};
}

}  // namespace weir
