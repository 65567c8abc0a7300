#include "comm/lanes.h"

#include <utility>

namespace weir {

Result<Lane*> Lanes::eager() {
  if (eager_ == nullptr) {
    Result<Stream> stream = nccl_.create_stream();
    if (!stream) return std::move(stream).error();
    eager_ = std::make_unique<Lane>(Lane{.stream = *stream});
  }
  return eager_.get();
}

Lane* Lanes::find(std::uint64_t capture) {
  for (const std::unique_ptr<Lane>& lane : captured_) {
    if (lane->capture == capture) return lane.get();
  }
  return nullptr;
}

// A lane whose capture is over serves the next one. The driver knows: the stream is in none.
Result<Lane*> Lanes::of_capture(std::uint64_t id) {
  if (Lane* const known = find(id)) return known;
  for (const std::unique_ptr<Lane>& lane : captured_) {
    const Result<CaptureInfo> info = device_.capture_info(lane->stream);
    if (!info) return info.error();
    if (info->status != CaptureInfo::Status::none) continue;
    lane->capture = id;
    lane->operations = 0;
    lane->digest = kDigestStart;
    lane->used = 0;
    return lane.get();
  }
  Result<Stream> stream = nccl_.create_stream();
  if (!stream) return std::move(stream).error();
  captured_.push_back(std::make_unique<Lane>(Lane{.stream = *stream, .capture = id}));
  return captured_.back().get();
}

Result<EventHandle> Lanes::event_of(Lane& lane) {
  if (lane.used == lane.events.size()) {
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    lane.events.push_back(*event);
  }
  return lane.events[lane.used++];
}

Status Lanes::destroy() {
  Status first;
  const auto note = [&](Status status) {
    if (first && !status) first = std::move(status);
  };
  if (eager_ != nullptr) captured_.push_back(std::exchange(eager_, nullptr));
  for (const std::unique_ptr<Lane>& lane : captured_) {
    for (const EventHandle event : lane->events) note(device_.destroy_event(event));
    note(heap_.retire(lane->stream));
    note(nccl_.destroy_stream(lane->stream));
  }
  captured_.clear();
  return first;
}

}  // namespace weir
