// SPDX-License-Identifier: Apache-2.0
#include "core/time/open_captures.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace weir {
namespace {

Error all_streams(const std::string& why) {
  return {ErrorCode::capture, "the work of all streams can't be waited for now: " + why};
}

}  // namespace

// The heaps of a device go before it, so that another device at its place finds nothing here.
std::shared_ptr<OpenCaptures::Context> OpenCaptures::Context::of(const Device& device) {
  static constinit Mutex all_mutex;
  static auto& all = *new std::map<const void*, std::weak_ptr<Context>>;
  const MutexLock lock(all_mutex);
  std::weak_ptr<Context>& known = all[device.context()];
  std::shared_ptr<Context> context = known.lock();
  if (context != nullptr) return context;
  std::erase_if(all, [](const auto& each) { return each.second.expired(); });
  context = std::make_shared<Context>();
  all[device.context()] = context;
  return context;
}

OpenCaptures::~OpenCaptures() {
  const MutexLock lock(context_.mutex);
  context_.heaps.erase(this);
}

std::uint64_t OpenCaptures::announce(std::optional<Stream> origin) {
  const MutexLock lock(context_.mutex);
  own().announced[++context_.last] = {.origin = origin};
  return context_.last;
}

void OpenCaptures::ended(std::uint64_t announced) {
  const MutexLock lock(context_.mutex);
  own().announced.erase(announced);
}

void OpenCaptures::note_begun(std::uint64_t announced) {
  const MutexLock lock(context_.mutex);
  std::map<std::uint64_t, Announced>& all = own().announced;
  if (const auto known = all.find(announced); known != all.end()) known->second.begun = true;
}

void OpenCaptures::meet(Stream stream) {
  if (stream.may_end || stream.is_all()) return;
  const MutexLock lock(context_.mutex);
  own().asked.emplace(stream.id, stream);
}

void OpenCaptures::forget(Stream stream) {
  const MutexLock lock(context_.mutex);
  own().asked.erase(stream.id);
}

Status OpenCaptures::not_captured(Stream stream) {
  const Result<CaptureInfo::Status> status = device_.capture_status(stream);
  if (!status) return status.error();
  if (*status == CaptureInfo::Status::none) return {};
  {
    const MutexLock lock(context_.mutex);
    if (!is_any_announced()) forgo_context_events();
  }
  return Error(ErrorCode::capture,
               "stream " + std::to_string(stream.id) +
                   " is being captured, and its earlier work can't be waited for meanwhile: free "
                   "its blocks before the capture begins, or after its end");
}

bool OpenCaptures::is_any_announced() const {
  for (const auto& [heap, known] : context_.heaps) {
    if (!known.announced.empty()) return true;
  }
  return false;
}

// One that was announced and is not there: it is about to begin; or it has ended, and whoever
// announced it failed to say so.
Result<bool> OpenCaptures::goes_on(Announced& announced) {
  if (!announced.origin || announced.origin->may_end) return true;
  const Result<CaptureInfo::Status> status = device_.capture_status(*announced.origin);
  if (!status) return status.error();
  const bool captured = *status != CaptureInfo::Status::none;
  const bool ended = announced.begun && !captured;
  announced.begun = announced.begun || captured;
  return !ended;
}

Status OpenCaptures::may_record_context() {
  if (!has_context_events()) {
    return Error(ErrorCode::unavailable,
                 "the work of all streams can't be waited for on the GPU in this process");
  }
  for (auto& [heap, known] : context_.heaps) {
    if (Status none = none_goes_on_in(known); !none) return none;
  }
  return {};
}

Status OpenCaptures::none_goes_on() {
  const MutexLock lock(context_.mutex);
  return none_goes_on_in(own());
}

Status OpenCaptures::none_goes_on_in(Known& known) {
  for (auto& [number, announced] : known.announced) {
    Result<bool> going_on = goes_on(announced);
    if (!going_on) return std::move(going_on).error();
    if (*going_on) return all_streams("a capture is going on");
  }
  for (const auto& [id, stream] : known.asked) {
    const Result<CaptureInfo::Status> status = device_.capture_status(stream);
    if (!status) continue;  // it is gone, and so is its capture
    if (*status == CaptureInfo::Status::none) continue;
    if (!is_any_announced()) forgo_context_events();
    return all_streams("stream " + std::to_string(id) + " is being captured");
  }
  return {};
}

}  // namespace weir
