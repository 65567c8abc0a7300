// SPDX-License-Identifier: Apache-2.0
// The events of a recording, to be changed or compared at will.
#pragma once

#include <vector>

#include "weir/recording.h"

namespace weir::test {

inline std::vector<Event> events_of(const Recording& recording) {
  return {recording.events.begin(), recording.events.end()};
}

// Calls `change` with the events as a vector, which become the recording's again.
template <class Change>
void change_events(Recording& recording, const Change& change) {
  std::vector<Event> events = events_of(recording);
  change(events);
  recording.events = EventLog(events);
}

template <class Change>
void change_last_event(Recording& recording, const Change& change) {
  change_events(recording, [&change](std::vector<Event>& events) { change(events.back()); });
}

}  // namespace weir::test
