// SPDX-License-Identifier: Apache-2.0
// Records events on streams, and of the whole context, beside captures that anybody may begin at
// any moment. An event that nobody needs any more is recorded again.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "core/time/open_captures.h"
#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class EventSource {
 public:
  // `device` and `captures` must outlive this.
  EventSource(EventCalls& device, OpenCaptures& captures) : device_(device), captures_(captures) {}
  // Destroys the events that were given back. One that the driver will not destroy is the driver's
  // to keep: nobody is left to tell.
  ~EventSource() {
    for (const EventHandle event : spare_) (void)device_.destroy_event(event);
  }
  EventSource(const EventSource&) = delete;
  EventSource& operator=(const EventSource&) = delete;

  // An event of all work queued on the stream so far; of Stream::all(), on all streams of the
  // context. Errors, in `status`: capture (the stream is being captured; of the context, any is, or
  // it may record no such event); device. (A Result around a handle would cost more than the rest.)
  EventHandle record(Stream stream, Status& status);
  // For others to record.
  void give_back(EventHandle event) { spare_.push_back(event); }
  // Destroys spare events, until so many are left. Those that the driver will not destroy stay.
  void keep(std::size_t most);

  const std::vector<EventHandle>& spare() const { return spare_; }

 private:
  friend struct TestAccess;
  Status record_beside_captures(EventHandle event, Stream stream);
  Status record_context(EventHandle event);

  EventCalls& device_;
  OpenCaptures& captures_;
  std::vector<EventHandle> spare_;
};

}  // namespace weir
