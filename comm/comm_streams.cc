// SPDX-License-Identifier: Apache-2.0
#include "comm/comm_streams.h"

#include <utility>

namespace weir {

Result<CommStream*> CommStreams::eager() {
  if (eager_ == nullptr) eager_ = std::make_unique<CommStream>();
  if (Status given = give_stream(*eager_); !given) return std::move(given).error();
  return eager_.get();
}

CommStream* CommStreams::find(std::uint64_t capture) {
  for (const std::unique_ptr<CommStream>& comm_stream : captured_) {
    if (comm_stream->capture == capture) return comm_stream.get();
  }
  return nullptr;
}

// What served a capture that is over serves the next one. Of a stream that was forked the driver
// knows: it is in none. Without one, a capture is known to be over once its graph is gone.
Result<CommStream*> CommStreams::of_capture(std::uint64_t id) {
  if (CommStream* const known = find(id)) return known;
  for (const std::unique_ptr<CommStream>& comm_stream : captured_) {
    bool is_over = comm_stream->graph.expired();
    if (comm_stream->forked) {
      const Result<CaptureInfo::Status> status = device_.capture_status(comm_stream->stream);
      if (!status) return status.error();
      is_over = *status == CaptureInfo::Status::none;
    }
    if (!is_over) continue;
    comm_stream->capture = id;
    comm_stream->forked = false;
    comm_stream->operations = 0;
    comm_stream->digest = kDigestStart;
    comm_stream->used = 0;
    return comm_stream.get();
  }
  captured_.push_back(std::make_unique<CommStream>(CommStream{.capture = id}));
  return captured_.back().get();
}

Status CommStreams::give_stream(CommStream& captured) {
  if (captured.stream.id == 0) {
    Result<Stream> stream = nccl_.create_stream();
    if (!stream) return std::move(stream).error();
    captured.stream = *stream;
  }
  return {};
}

Result<EventHandle> CommStreams::event_of(CommStream& comm_stream) {
  if (comm_stream.used == comm_stream.events.size()) {
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    comm_stream.events.push_back(*event);
  }
  return comm_stream.events[comm_stream.used++];
}

Status CommStreams::destroy() {
  Status first;
  const auto note = [&](Status status) {
    if (first && !status) first = std::move(status);
  };
  if (eager_ != nullptr) captured_.push_back(std::exchange(eager_, nullptr));
  for (const std::unique_ptr<CommStream>& comm_stream : captured_) {
    for (const EventHandle event : comm_stream->events) note(device_.destroy_event(event));
    if (comm_stream->stream.id == 0) continue;
    note(heap_.retire(comm_stream->stream));
    note(nccl_.destroy_stream(comm_stream->stream));
  }
  captured_.clear();
  return first;
}

}  // namespace weir
