// SPDX-License-Identifier: Apache-2.0
// Timelines: broken invariants.
#include <set>
#include <string>
#include <vector>

#include "core/time/timelines.h"

namespace weir {

std::vector<std::string> Timelines::validate() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken;
  std::set<EventHandle> kept;
  const auto keep = [&](EventHandle event) {
    if (!kept.insert(event).second) broken.push_back("timelines: an event is kept twice");
  };
  for (const EventHandle event : spare_events_) keep(event);
  if (by_stream_.size() != timelines_.size()) {
    broken.push_back("timelines: streams and timelines differ in number");
  }
  std::size_t retired = 0;
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    const TimelineId id{static_cast<std::uint32_t>(i)};
    const RecordedEvents& events = at(id).events;
    for (std::size_t e = 0; e < events.size(); ++e) keep(events[e].event);
    retired += at(id).retired && !events.empty() ? 1 : 0;
    validate(id, broken);
  }
  if (retired != retired_.size()) {
    broken.push_back("timelines: the retired streams that have an event are not those listed");
  }
  return broken;
}

void Timelines::validate(TimelineId id, std::vector<std::string>& broken) const {
  const Timeline& mine = at(id);
  const auto say = [&](const std::string& what) {
    broken.push_back("timeline " + std::to_string(id.value) + ": " + what);
  };
  const auto known = by_stream_.find(mine.stream.id);
  if (known == by_stream_.end() || known->second != id) {
    say("its stream has another timeline, or none");
  }
  Sequence last{0};
  for (std::size_t e = 0; e < mine.events.size(); ++e) {
    const Recorded& recorded = mine.events[e];
    if (recorded.sequence <= last) say("its events do not rise");
    last = recorded.sequence;
    if (recorded.moment == 0) continue;
    for (const VectorClock::Entry& known : mine.events.clock_of(recorded)) {
      if (known.timeline.value < timelines_.size() &&
          !is_complete({known.timeline, known.sequence}) &&
          known.sequence > mine.clock.at(known.timeline)) {
        say("an event knows of waits that were never made");
      }
    }
  }
  // What is complete needs no event any more.
  if (mine.retired && mine.events.empty() && !mine.is_complete(mine.latest())) {
    say("retired without its last event");
  }
  if (last > mine.latest()) say("an event is from the future");
  if (mine.complete.load() > mine.latest()) say("complete beyond its last event");
  if (!mine.clock.in_order()) say("its clock is not in order of timelines");
  for (const VectorClock::Entry& fence : mine.clock) {
    if (fence.timeline.value >= timelines_.size()) {
      say("waited for a timeline that is not there");
    } else if (fence.sequence > at(fence.timeline).latest()) {
      say("waited for an event that timeline " + std::to_string(fence.timeline.value) +
          " never recorded");
    }
  }
}

}  // namespace weir
