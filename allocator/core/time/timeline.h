// SPDX-License-Identifier: Apache-2.0
// One stream's timeline: its points, the events that were recorded on it, and what it has waited
// for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/ring.h"
#include "core/time/event_source.h"
#include "core/time/vector_clock.h"
#include "weir/device.h"
#include "weir/types.h"

namespace weir {

// Written by one thread at a time, read by any.
class SharedSequence {
 public:
  explicit SharedSequence(Sequence sequence) : value_(sequence.value) {}
  SharedSequence(const SharedSequence& other) : SharedSequence(other.load()) {}
  SharedSequence& operator=(const SharedSequence& other) { return store(other.load()), *this; }
  ~SharedSequence() = default;
  Sequence load() const { return {value_.load(std::memory_order_acquire)}; }
  void store(Sequence sequence) { value_.store(sequence.value, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> value_;
};

// An event, and what is known of who waits for it.
struct Recorded {
  Sequence sequence;  // it covers the timeline's points up to here
  EventHandle event;
  Sequence context;   // events of the whole context up to here were recorded before it
  VectorClock clock;  // what the timeline had waited for
};

// Threads: `id` and `stream` never change; `point` and `complete` are read without a lock; the rest
// is guarded by the lock of the Timelines that it is part of.
struct Timeline {
  // An older point is waited for through a later event: right, if more than need be.
  static constexpr std::size_t kMostEvents = 64;

  TimelineId id;
  Stream stream;
  SharedSequence point{Sequence{1}};     // of the next event; when retired, of the last
  SharedSequence complete{Sequence{0}};  // the host knows work up to here to be done
  VectorClock clock;             // what it has waited for; nothing once it is retired and complete
  Ring<Recorded> events;         // that somebody may still have to wait for, oldest first
  std::uint32_t host_waits = 0;  // threads that wait for one of them, so that all stay
  bool retired = false;

  // The latest sequence that an event of it has, or would have, had its record not failed.
  Sequence latest() const { return {point.load().value - (retired ? 0 : 1)}; }
  bool is_complete(Sequence sequence) const { return sequence <= complete.load(); }

  // The earliest event that covers `sequence`; null if there is none.
  const Recorded* covering(Sequence sequence) const {
    std::size_t i = events.size();
    while (i > 0 && events[i - 1].sequence >= sequence) --i;
    return i == events.size() ? nullptr : &events[i];
  }

  // The latest point that an event of the whole context covers: that of the last event recorded
  // before it.
  Sequence covered_by(Sequence context) const {
    std::size_t covered = 0, end = events.size();  // those before `covered` are; from `end` on none
    while (covered < end) {
      const std::size_t middle = (covered + end) / 2;
      if (events[middle].context < context) {
        covered = middle + 1;
      } else {
        end = middle;
      }
    }
    return covered == 0 ? Sequence{0} : events[covered - 1].sequence;
  }

  // Forgets the events but the last, which covers what they did. Gives back memory that they took.
  void keep_last_event(EventSource& source) {
    if (host_waits > 0) return;
    while (events.size() > 1) drop_first_event(source);
    events.shrink();
  }
  void drop_first_event(EventSource& source) {
    source.give_back(events.front().event);
    events.pop();
  }
};

}  // namespace weir
