// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <vector>

#include "look/exporters.h"
#include "observe/recorded_state.h"

namespace weir {

Recording moment_of(const Recording& recording, std::size_t events) {
  events = std::clamp(events, recording.initial, recording.events.size());
  RecordedState state;
  std::map<std::uint64_t, std::vector<Event>> fences;  // of live blocks, by address
  Nanoseconds time = recording.begin();
  for (auto each = recording.events.begin(); each.index() < events; ++each) {
    state.accept(*each, [&fences](const Event& event) {
      if (event.kind == EventKind::deallocate) fences.erase(event.address.value);
      if (event.kind == EventKind::fence) fences[event.address.value].push_back(event);
    });
    time = each->time;
  }
  Recording moment;
  moment.source = recording.source;
  moment.program = recording.program;
  moment.device = recording.device;
  moment.device_bytes = recording.device_bytes;
  moment.events = EventLog(state.as_events(time));
  for (const auto& [address, taken] : fences) {
    for (Event fence : taken) {
      fence.time = time;
      moment.events.push_back(fence);
    }
  }
  moment.initial = moment.events.size();
  moment.frames = recording.frames;
  moment.stacks = recording.stacks;
  moment.damage = recording.damage;
  return moment;
}

}  // namespace weir
