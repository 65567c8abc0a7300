#include "core/timelines.h"

#include <algorithm>
#include <cassert>
#include <set>

#include "core/mutation.h"

namespace weir {
namespace {

// Events kept for each timeline. An older fence is waited for through a later event: right, if more
// than need be.
constexpr std::size_t kEventsKept = 64;

}  // namespace

void FenceSet::join(Fence fence) {
  for (Fence& mine : fences_) {
    if (mine.timeline == fence.timeline) {
      mine.sequence = std::max(mine.sequence, fence.sequence);
      return;
    }
  }
  fences_.push_back(fence);
}

void FenceSet::join(const FenceSet& other) {
  for (const Fence fence : other) join(fence);
}

Timelines::Timelines(Device& device, Observer& observer) : device_(device), observer_(observer) {}

Timelines::~Timelines() {
  for (Timeline& timeline : timelines_) {
    for (const Recorded& recorded : timeline.events) spare_events_.push_back(recorded.event);
  }
  // An event that the driver will not destroy is the driver's to keep: nobody is left to tell.
  for (const EventHandle event : spare_events_) (void)device_.destroy_event(event);
}

TimelineId Timelines::of(Stream stream) {
  const MutexLock lock(mutex_);
  const TimelineId next{static_cast<std::uint32_t>(timelines_.size())};
  const auto [known, is_new] = by_stream_.try_emplace(stream.id, next);
  if (is_new) timelines_.push_back(Timeline{.stream = stream});
  return known->second;
}

Stream Timelines::stream(TimelineId timeline) const {
  const MutexLock lock(mutex_);
  return timelines_[timeline.value].stream;
}

Fence Timelines::now(TimelineId timeline) const {
  const MutexLock lock(mutex_);
  const Timeline& mine = timelines_[timeline.value];
  // Nothing runs on a retired stream any more: its last event says all.
  return {timeline, mine.retired ? Sequence{mine.next.value - 1} : mine.next};
}

Result<Fence> Timelines::record(TimelineId timeline) {
  const MutexLock lock(mutex_);
  if (timelines_[timeline.value].retired) {
    return Fence{timeline, {timelines_[timeline.value].next.value - 1}};
  }
  if (mutation::left_out(mutation::Site::fence_records)) return Fence{timeline, Sequence{0}};
  Result<const Recorded*> recorded = record_event(timeline);
  if (!recorded) return std::move(recorded).error();
  return Fence{timeline, (*recorded)->sequence};
}

Status Timelines::retire(TimelineId timeline) {
  const MutexLock lock(mutex_);
  Timeline& mine = timelines_[timeline.value];
  if (mine.retired) return {};
  if (mutation::left_out(mutation::Site::retire_records)) {
    mine.complete = mine.next;
    mine.next = {mine.next.value + 1};
  } else if (Result<const Recorded*> last = record_event(timeline); !last) {
    return std::move(last).error();
  }
  mine.retired = true;
  return {};
}

bool Timelines::retired(TimelineId timeline) const {
  const MutexLock lock(mutex_);
  return timelines_[timeline.value].retired;
}

bool Timelines::is_satisfied(Fence fence, TimelineId waiter) const {
  if (fence.timeline == waiter) return true;
  if (fence.sequence <= timelines_[fence.timeline.value].complete) return true;
  const Clock& clock = timelines_[waiter.value].clock;
  return fence.timeline.value < clock.size() && fence.sequence <= clock[fence.timeline.value];
}

bool Timelines::satisfied(Fence fence, TimelineId waiter) const {
  const MutexLock lock(mutex_);
  return is_satisfied(fence, waiter);
}

bool Timelines::satisfied(const FenceSet& fences, TimelineId waiter) const {
  const MutexLock lock(mutex_);
  return std::all_of(fences.begin(), fences.end(), [&](Fence fence) WEIR_REQUIRES(mutex_) {
    return is_satisfied(fence, waiter);
  });
}

Result<std::uint32_t> Timelines::wait(TimelineId waiter, const FenceSet& fences) {
  const MutexLock lock(mutex_);
  std::uint32_t waits = 0;
  for (const Fence fence : fences) {
    if (is_satisfied(fence, waiter)) continue;
    Result<const Recorded*> recorded = covering(fence);
    if (!recorded) return std::move(recorded).error();
    Timeline& mine = timelines_[waiter.value];
    if (Status status = device_.wait(mine.stream, (*recorded)->event); !status) {
      return std::move(status).error();
    }
    join(mine.clock, (*recorded)->clock);
    raise(mine.clock, fence.timeline, (*recorded)->sequence);
    ++waits;
  }
  return waits;
}

Result<bool> Timelines::complete(const FenceSet& fences) {
  const MutexLock lock(mutex_);
  for (const Fence fence : fences) {
    if (fence.sequence <= timelines_[fence.timeline.value].complete) continue;
    Result<const Recorded*> recorded = covering(fence);
    if (!recorded) return std::move(recorded).error();
    const Sequence sequence = (*recorded)->sequence;
    Result<bool> done = device_.query((*recorded)->event);
    if (!done) return std::move(done).error();
    if (!*done) return false;
    mark_complete(fence.timeline, sequence);
  }
  return true;
}

Status Timelines::host_wait(const FenceSet& fences) {
  for (const Fence fence : fences) {
    Result<Borrowed> borrowed = borrow_event(fence);
    if (!borrowed) return std::move(borrowed).error();
    if (!borrowed->needed) continue;
    const Nanoseconds start = device_.now();
    Status status = device_.synchronize(borrowed->event);
    const MutexLock lock(mutex_);
    if (borrowed->own) spare_events_.push_back(borrowed->event);
    if (!status) return status;
    mark_complete(fence.timeline, borrowed->sequence);
    observer_.emit(Event{.kind = EventKind::host_wait,
                         .other = timelines_[fence.timeline.value].stream.id,
                         .sequence = borrowed->sequence,
                         .duration = device_.now() - start});
  }
  return {};
}

// The events of a timeline may be recorded again while nobody holds the lock, so the host waits for
// one of its own; but for a retired timeline's last event, which stays.
Result<Timelines::Borrowed> Timelines::borrow_event(Fence fence) {
  const MutexLock lock(mutex_);
  Timeline& mine = timelines_[fence.timeline.value];
  if (fence.sequence <= mine.complete) return Borrowed{.needed = false};
  if (mine.retired) {
    return Borrowed{.event = mine.events.back().event, .sequence = mine.events.back().sequence};
  }
  Result<EventHandle> event = take_event();
  if (!event) return std::move(event).error();
  if (Status status = device_.record(*event, mine.stream); !status) {
    spare_events_.push_back(*event);
    return std::move(status).error();
  }
  const Sequence sequence = mine.next;
  mine.next = {mine.next.value + 1};
  return Borrowed{.event = *event, .sequence = sequence, .own = true};
}

void Timelines::join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void Timelines::raise(Clock& clock, TimelineId timeline, Sequence sequence) {
  if (clock.size() <= timeline.value) clock.resize(timeline.value + 1);
  clock[timeline.value] = std::max(clock[timeline.value], sequence);
}

Result<const Timelines::Recorded*> Timelines::covering(Fence fence) {
  const Timeline& mine = timelines_[fence.timeline.value];
  const auto earliest = std::lower_bound(
      mine.events.begin(), mine.events.end(), fence.sequence,
      [](const Recorded& recorded, Sequence sequence) { return recorded.sequence < sequence; });
  if (earliest != mine.events.end()) return &*earliest;
  assert(!mine.retired);
  return record_event(fence.timeline);
}

Result<const Timelines::Recorded*> Timelines::record_event(TimelineId timeline) {
  Result<EventHandle> event = take_event();
  if (!event) return std::move(event).error();
  Timeline& mine = timelines_[timeline.value];
  if (Status status = device_.record(*event, mine.stream); !status) {
    spare_events_.push_back(*event);
    return std::move(status).error();
  }
  mine.events.push_back({mine.next, *event, mine.clock});
  mine.next = {mine.next.value + 1};
  if (mine.events.size() > kEventsKept) {
    // Whoever waits for an event from now on waits for its latest record; whoever waits already
    // waits for the record made before. So it may be recorded again at once.
    spare_events_.push_back(mine.events.front().event);
    mine.events.pop_front();
  }
  return &mine.events.back();
}

Result<EventHandle> Timelines::take_event() {
  if (spare_events_.empty()) return device_.create_event();
  const EventHandle event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

void Timelines::mark_complete(TimelineId timeline, Sequence sequence) {
  Timeline& mine = timelines_[timeline.value];
  mine.complete = std::max(mine.complete, sequence);
  // The last event stays: covering() needs one for a retired timeline.
  while (mine.events.size() > 1 && mine.events.front().sequence < mine.complete) {
    spare_events_.push_back(mine.events.front().event);
    mine.events.pop_front();
  }
}

std::vector<std::string> Timelines::validate() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken;
  const auto say = [&](std::size_t i, const std::string& what) {
    broken.push_back("timeline " + std::to_string(i) + ": " + what);
  };
  std::set<EventHandle> kept;
  const auto keep = [&](EventHandle event) {
    if (!kept.insert(event).second) broken.push_back("timelines: an event is kept twice");
  };
  for (const EventHandle event : spare_events_) keep(event);
  if (by_stream_.size() != timelines_.size()) {
    broken.push_back("timelines: streams and timelines differ in number");
  }
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    const Timeline& mine = timelines_[i];
    const auto known = by_stream_.find(mine.stream.id);
    if (known == by_stream_.end() || known->second.value != i) {
      say(i, "its stream has another timeline, or none");
    }
    Sequence last{0};
    for (const Recorded& recorded : mine.events) {
      keep(recorded.event);
      if (recorded.sequence <= last) say(i, "its events do not rise");
      last = recorded.sequence;
      Clock all = mine.clock;
      join(all, recorded.clock);
      if (all != mine.clock) say(i, "an event knows of waits that were never made");
    }
    // What is complete needs no event any more.
    if (mine.retired && mine.events.empty() && mine.complete.value + 1 < mine.next.value) {
      say(i, "retired without its last event");
    }
    if (last >= mine.next) say(i, "an event is from the future");
    if (mine.complete >= mine.next) say(i, "complete beyond its last event");
    if (mine.clock.size() > timelines_.size()) say(i, "waited for a timeline that is not there");
    for (std::size_t other = 0; other < std::min(mine.clock.size(), timelines_.size()); ++other) {
      if (mine.clock[other] >= timelines_[other].next) {
        say(i, "waited for an event that timeline " + std::to_string(other) + " never recorded");
      }
    }
  }
  return broken;
}

}  // namespace weir
