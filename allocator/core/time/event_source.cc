// SPDX-License-Identifier: Apache-2.0
#include "core/time/event_source.h"

#include <string>
#include <utility>

namespace weir {
namespace {

// Apart from the path that succeeds, which stays short.
[[gnu::cold, gnu::noinline]] Error not_recorded(Stream stream, Error error) {
  if (error.code() != ErrorCode::device) return error;
  return {ErrorCode::device,
          "no event can be recorded on stream " + std::to_string(stream.id) + ": " +
              error.message() +
              ". If the stream was destroyed without retire(): what it used last can't go to other "
              "streams; call retire() before a stream is destroyed"};
}

}  // namespace

EventHandle EventSource::record(Stream stream, Status& status) {
  if (spare_.empty()) [[unlikely]] {
    Result<EventHandle> made = device_.create_event();
    if (!made) {
      status = std::move(made).error();
      return {};
    }
    spare_.push_back(*made);
  }
  const EventHandle event = spare_.back();
  status = stream.is_all() ? record_context(event) : record_beside_captures(event, stream);
  if (!status) [[unlikely]] {
    status = not_recorded(stream, std::move(status).error());
    return {};
  }
  spare_.pop_back();
  return event;
}

// A program may begin to capture the stream at any moment. Then what was recorded may be the
// capture's, and to ask about it would break that.
Status EventSource::record_beside_captures(EventHandle event, Stream stream) {
  if (Status free = captures_.not_captured(stream); !free) return free;
  if (Status recorded = device_.record(event, stream); !recorded) return recorded;
  return captures_.not_captured(stream);
}

Status EventSource::record_context(EventHandle event) {
  Status status = captures_.record_context([&] {
    Status recorded = device_.record_context(event);
    if (!recorded && recorded.error().code() != ErrorCode::device) {
      captures_.forgo_context_events(recorded.error().code() == ErrorCode::unavailable
                                         ? ContextEventsLost::unavailable
                                         : ContextEventsLost::refused);
    }
    return recorded;
  });
  if (status || status.error().code() != ErrorCode::unavailable) return status;
  // Which of the two it is makes no difference to who can't wait.
  return Error(ErrorCode::capture, status.error().message());
}

void EventSource::keep(std::size_t most) {
  while (spare_.size() > most && device_.destroy_event(spare_.back())) spare_.pop_back();
  if (spare_.empty()) spare_ = {};
}

}  // namespace weir
