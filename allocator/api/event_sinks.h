// SPDX-License-Identifier: Apache-2.0
// Sinks of events that an allocator puts together: one event to several, and the latest few kept.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weir/event.h"

namespace weir {

// Passes each event on to every sink, in the order in which they were added.
// Threads: on_event() from any; add() before the first event.
class FanOutSink final : public EventSink {
 public:
  void add(std::unique_ptr<EventSink> sink) { sinks_.push_back(std::move(sink)); }
  bool empty() const { return sinks_.empty(); }
  void on_event(const Event& event) override {
    for (const std::unique_ptr<EventSink>& sink : sinks_) sink->on_event(event);
  }

 private:
  std::vector<std::unique_ptr<EventSink>> sinks_;
};

// Keeps the latest events, to tell how a heap came to be as it is. Any thread.
class StorySink final : public EventSink {
 public:
  explicit StorySink(std::size_t length) : length_(length) {}
  void on_event(const Event& event) override;
  std::string tell() const;  // one line an event, oldest first

 private:
  const std::size_t length_;
  mutable std::mutex mutex_;
  std::deque<Event> latest_;  // guarded by mutex_
};

}  // namespace weir
