// SPDX-License-Identifier: Apache-2.0
#include "core/time/open_captures.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weir {
namespace {

Error all_streams(const std::string& why) {
  return {ErrorCode::capture, "the work of all streams can't be waited for now: " + why};
}

Error no_events() {
  return {ErrorCode::unavailable,
          "the work of all streams can't be waited for on the GPU in this process"};
}

// Of a context: does an event of the device's context break its captures?
auto breaks_captures_of(const Device& device) {
  return [own = device.context(), peers = device.peer_contexts()](const void* context) {
    return context == own || std::find(peers.begin(), peers.end(), context) != peers.end();
  };
}

}  // namespace

// The heaps of a device go before it, so that another device at its place finds nothing here. (Not
// destroyed: heaps may live until the process ends.)
OpenCaptures::Process& OpenCaptures::process() {
  static auto& process = *new Process;
  return process;
}

OpenCaptures::~OpenCaptures() {
  const MutexLock lock(process_.mutex);
  process_.heaps.erase(this);
}

void OpenCaptures::announce(std::uint64_t number, std::optional<Stream> origin, bool begun) {
  const MutexLock lock(process_.mutex);
  own().announced[number] = {.origin = origin, .begun = begun};
}

void OpenCaptures::ended(std::uint64_t number) {
  const MutexLock lock(process_.mutex);
  own().announced.erase(number);
}

void OpenCaptures::note_begun(std::uint64_t number) {
  const MutexLock lock(process_.mutex);
  std::map<std::uint64_t, Announced>& all = own().announced;
  if (const auto known = all.find(number); known != all.end()) known->second.begun = true;
}

void OpenCaptures::ask_about(Stream stream) {
  const MutexLock lock(process_.mutex);
  std::erase_if(own().announced, [&](const auto& each) {
    if (!each.second.begun || each.second.origin != stream) return false;
    const Result<CaptureInfo::Status> status = device_.capture_status(stream);
    return status && *status == CaptureInfo::Status::none;
  });
}

void OpenCaptures::meet(Stream stream) {
  if (stream.may_end || stream.is_all()) return;
  const MutexLock lock(process_.mutex);
  own().asked.emplace(stream.id, stream);
}

void OpenCaptures::forget(Stream stream) {
  const MutexLock lock(process_.mutex);
  own().asked.erase(stream.id);
  for (auto& [number, announced] : own().announced) {
    if (announced.origin == stream) announced.origin.reset();
  }
}

void OpenCaptures::forgo_context_events(ContextEventsLost why, std::uint64_t stream) {
  const std::uint32_t bit = std::uint32_t{1} << static_cast<std::uint32_t>(why);
  if (!context_events_ || (reasons() & bit) != 0) return;
  if ((reasons_.fetch_or(bit, std::memory_order_relaxed) & bit) == 0 && lost_) lost_(why, stream);
}

Status OpenCaptures::not_captured(Stream stream) {
  if (stream.is_in_capture()) return {};
  const Result<CaptureInfo::Status> status = device_.capture_status(stream);
  if (!status) return status.error();
  if (*status == CaptureInfo::Status::none) return {};
  {
    const MutexLock lock(process_.mutex);
    if (!is_any_announced()) {
      forgo_context_events(ContextEventsLost::unannounced_capture, stream.id);
    }
  }
  return Error(ErrorCode::capture,
               "stream " + std::to_string(stream.id) +
                   " is being captured, and its earlier work can't be waited for meanwhile: free "
                   "its blocks before the capture begins, or after its end");
}

bool OpenCaptures::is_any_announced() const {
  const auto concerned = breaks_captures_of(device_);
  return std::any_of(process_.heaps.begin(), process_.heaps.end(), [&](const auto& each) {
    return !each.second.announced.empty() && concerned(each.first->of_);
  });
}

Result<OpenCaptures::Progress> OpenCaptures::progress(std::uint64_t number) {
  const MutexLock lock(process_.mutex);
  std::map<std::uint64_t, Announced>& all = own().announced;
  const auto known = all.find(number);
  return known == all.end() ? Progress::over : progress_of(device_, known->second);
}

Result<OpenCaptures::Progress> OpenCaptures::progress_of(Device& device, Announced& announced) {
  if (!announced.origin || announced.origin->may_end) return Progress::unknown;
  const Result<CaptureInfo::Status> status = device.capture_status(*announced.origin);
  if (!status) return status.error();
  const bool captured = *status != CaptureInfo::Status::none;
  announced.begun = announced.begun || captured;
  if (captured) return Progress::going_on;
  return announced.begun ? Progress::over : Progress::about_to_begin;
}

Status OpenCaptures::may_record_context() {
  if (!has_context_events()) return no_events();
  const auto concerned = breaks_captures_of(device_);
  for (auto& [heap, known] : process_.heaps) {
    if (!concerned(heap->of_)) continue;
    // What a peer's heap met there may be captured, and can't be asked about.
    if (heap->of_ != of_ && !heap->has_context_events()) return no_events();
    if (Status none = none_goes_on_in(*heap, known); !none) return none;
  }
  return {};
}

Status OpenCaptures::none_goes_on() {
  const MutexLock lock(process_.mutex);
  return none_goes_on_in(*this, own());
}

// A stream is asked about through a device of its own context.
Status OpenCaptures::none_goes_on_in(const OpenCaptures& of, Known& known) {
  for (auto& [number, announced] : known.announced) {
    const Result<Progress> progress = progress_of(of.device_, announced);
    if (!progress) return progress.error();
    if (*progress != Progress::over) return all_streams("a capture is going on");
  }
  for (const auto& [id, stream] : known.asked) {
    const Result<CaptureInfo::Status> status = of.device_.capture_status(stream);
    if (!status) continue;  // it is gone, and so is its capture
    if (*status == CaptureInfo::Status::none) continue;
    if (!is_any_announced()) forgo_context_events(ContextEventsLost::unannounced_capture, id);
    return all_streams("stream " + std::to_string(id) + " is being captured");
  }
  return {};
}

}  // namespace weir
