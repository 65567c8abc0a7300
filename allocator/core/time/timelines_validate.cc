// SPDX-License-Identifier: Apache-2.0
// Timelines: broken invariants.
#include <optional>
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
  for (const EventHandle event : events_.spare()) keep(event);
  if (by_stream_.size() != timelines_.size()) {
    broken.push_back("timelines: streams and timelines differ in number");
  }
  std::size_t retired = 0;
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    const Timeline& mine = timelines_[i];
    retired += mine.retired && !mine.events.empty() ? 1 : 0;
    const auto say = [&](const std::string& what) {
      broken.push_back("timeline " + std::to_string(i) + ": " + what);
    };
    const auto validate = [&](const VectorClock& clock) {
      std::optional<TimelineId> last;
      for (const Fence fence : clock) {
        if (last && fence.timeline <= *last) say("a clock is not in order of timelines");
        last = fence.timeline;
        if (fence.timeline.value >= timelines_.size()) {
          say("waited for a timeline that is not there");
        } else if (fence.sequence > timelines_[fence.timeline.value].latest()) {
          say("waited for an event that timeline " + std::to_string(fence.timeline.value) +
              " never recorded");
        }
      }
      if (clock.size() > VectorClock::kMost) say("a clock knows of too many timelines");
    };
    const auto known = by_stream_.find(mine.stream.id);
    if (known == by_stream_.end() || known->second != mine.id) {
      say("its stream has another timeline, or none");
    }
    validate(mine.clock);
    Sequence last{0};
    for (std::size_t e = 0; e < mine.events.size(); ++e) {
      const Recorded& recorded = mine.events[e];
      keep(recorded.event);
      if (recorded.sequence <= last) say("its events do not rise");
      last = recorded.sequence;
      validate(recorded.clock);
    }
    if (last > mine.latest()) say("an event is from the future");
    if (mine.complete.load() > mine.latest()) say("complete beyond its last event");
    // What is complete needs no event any more.
    if (mine.retired && mine.events.empty() && !mine.is_complete(mine.latest())) {
      say("retired without its last event");
    }
  }
  if (retired != retired_.size()) {
    broken.push_back("timelines: the retired streams that have an event are not those listed");
  }
  return broken;
}

}  // namespace weir
