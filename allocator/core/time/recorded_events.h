// SPDX-License-Identifier: Apache-2.0
// The events recorded on one timeline that somebody may still have to wait for, of a bounded
// number, and what the timeline had waited for when each was recorded. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/ring.h"
#include "core/time/vector_clock.h"
#include "weir/device.h"
#include "weir/types.h"

namespace weir {

struct Recorded {
  Sequence sequence;
  EventHandle event;
  std::uint32_t moment = 0;  // which of the timeline's clocks it carries; 0: it had none yet
};

class RecordedEvents {
 public:
  // An older point is waited for through a later event: right, if more than need be.
  static constexpr std::size_t kMost = 64;

  bool empty() const { return events_.empty(); }
  bool full() const { return events_.size() == kMost; }
  std::size_t size() const { return events_.size(); }
  const Recorded& operator[](std::size_t i) const { return events_[i]; }
  Recorded& operator[](std::size_t i) { return events_[i]; }
  const Recorded& front() const { return events_.front(); }
  const Recorded& back() const { return events_.back(); }

  // The events pushed from now on carry this clock.
  void new_moment(const VectorClock& clock) {
    clocks_.push_slot() = clock;
    ++moment_;
  }
  // Not full; `sequence` is later than all that are there.
  const Recorded& push(Sequence sequence, EventHandle event) {
    return events_.push_slot() = {sequence, event, moment_};
  }
  void pop() {
    events_.pop();
    // The last clock stays: the next event may carry it too.
    const std::uint32_t wanted = events_.empty() ? moment_ : events_.front().moment;
    while (clocks_.size() > moment_ - wanted + 1) clocks_.pop();
  }
  // All but the last go, to the end of `gone`. Gives back memory that many events took.
  void keep_last(std::vector<EventHandle>& gone) {
    while (events_.size() > 1) {
      gone.push_back(events_.front().event);
      pop();
    }
    events_.shrink();
    clocks_.shrink();
  }
  // Gives back its memory. Nothing is left, and nothing may be pushed any more.
  void reset() { *this = RecordedEvents{}; }

  // Only of an event whose moment is not 0.
  const VectorClock& clock_of(const Recorded& recorded) const {
    return clocks_[clocks_.size() - 1 - (moment_ - recorded.moment)];
  }
  VectorClock& clock_of(const Recorded& recorded) {
    return clocks_[clocks_.size() - 1 - (moment_ - recorded.moment)];
  }

  // The earliest one at `sequence` or later; null if there is none. Sequences rise by one, but for
  // a few gaps, so it is next to where that would have it.
  const Recorded* covering(Sequence sequence) const {
    if (empty() || back().sequence < sequence) return nullptr;
    if (size() == 1 || events_[size() - 2].sequence < sequence) return &back();
    const std::uint64_t before = sequence.value - std::min(sequence, front().sequence).value;
    std::size_t i = static_cast<std::size_t>(std::min<std::uint64_t>(before, size() - 1));
    while (i > 0 && events_[i - 1].sequence >= sequence) --i;
    return &events_[i];
  }

 private:
  Ring<Recorded> events_;     // oldest first
  Ring<VectorClock> clocks_;  // those that events carry, and the last
  std::uint32_t moment_ = 0;  // of the last of them
};

}  // namespace weir
