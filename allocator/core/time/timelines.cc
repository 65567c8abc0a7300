// SPDX-License-Identifier: Apache-2.0
#include "core/time/timelines.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/base/broken.h"

namespace weir {
namespace {

// How many retired streams the device is asked about at a time.
constexpr int kRetiredAsked = 4;

}  // namespace

Timelines::Timelines(EventCalls& device, Observer& observer, OpenCaptures& captures, Trust trust,
                     Polls polls)
    : device_(device),
      observer_(observer),
      captures_(captures),
      trust_(trust),
      polls_(polls),
      events_(device, captures) {
  if (trust == Trust::context) context_ = of(Stream::all());
}

Timelines::~Timelines() {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    while (!timelines_[i].events.empty()) timelines_[i].drop_first_event(events_);
  }
}

TimelineId Timelines::of(Stream stream) {
  const MutexLock lock(mutex_);
  const TimelineId next{static_cast<std::uint32_t>(timelines_.size())};
  const auto [known, is_new] = by_stream_.try_emplace(stream.id, next);
  if (is_new) {
    timelines_.push_back(Timeline{.id = next, .stream = stream, .clock = {}, .events = {}});
    if (!stream.is_in_capture()) captures_.meet(stream);
  }
  return known->second;
}

bool Timelines::has_met(Stream stream) const {
  const MutexLock lock(mutex_);
  return by_stream_.contains(stream.id);
}

bool Timelines::retired(Stream stream) const {
  const MutexLock lock(mutex_);
  const auto met = by_stream_.find(stream.id);
  return met != by_stream_.end() && timelines_[met->second.value].retired;
}

std::vector<Stream> Timelines::streams() const {
  const MutexLock lock(mutex_);
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    const Timeline& each = timelines_[i];
    if (!each.retired && !each.stream.is_all()) streams.push_back(each.stream);
  }
  return streams;
}

// (Inline, like those below that wait() calls: in a library that may be a shared one, the compiler
// has to be told that nobody else's definition can take their place.)
inline const Recorded* Timelines::covering(Timeline& timeline, Sequence sequence, Status& status) {
  if (const Recorded* const earliest = timeline.covering(sequence)) return earliest;
  // Points are taken without the lock, and one taken while the driver records is to be covered by a
  // later event: so the sequence is used up first, come what may.
  const Sequence used = timeline.point.load();
  timeline.point.store({used.value + 1});
  const EventHandle event = events_.record(timeline.stream, status);
  if (!status) return nullptr;
  // Whoever waits on the GPU for the event that goes waits for the record made before; whoever
  // waits from now on waits for a later event.
  if (timeline.events.size() >= Timeline::kMostEvents && timeline.host_waits == 0) {
    timeline.drop_first_event(events_);
  }
  Recorded& recorded = timeline.events.push_slot();
  recorded.sequence = used;
  recorded.event = event;
  if (trust_ == Trust::context) {
    recorded.context = timelines_[context_.value].latest();
    learn();  // the next event of the context covers it
  }
  recorded.clock = timeline.clock;
  return &recorded;
}

Result<Fence> Timelines::record(TimelineId timeline) {
  const MutexLock lock(mutex_);
  // Nothing runs on a retired stream any more: its last event says all.
  Timeline& mine = timelines_[timeline.value];
  if (mine.retired) return now(timeline);
  Status status;
  const Recorded* const recorded = covering(mine, mine.point.load(), status);
  if (recorded == nullptr) return std::move(status).error();
  return Fence{timeline, recorded->sequence};
}

Status Timelines::retire(TimelineId timeline) {
  Fence oldest;
  {
    const MutexLock lock(mutex_);
    Timeline& mine = timelines_[timeline.value];
    if (mine.retired) return {};
    Status status;
    if (covering(mine, mine.point.load(), status) == nullptr) return status;
    // Whoever took a point meanwhile may have the one after it.
    mine.events.back().sequence = mine.point.load();
    mine.keep_last_event(events_);
    retired_.push_back(timeline);
    mine.retired = true;
    captures_.forget(mine.stream);
    if (retired_.size() <= kRetiredKept) return {};
    if (polls_ == Polls::yes) {
      const std::vector<TimelineId> few(retired_.begin(), retired_.begin() + kRetiredAsked);
      for (const TimelineId each : few) {
        ask_about_last_event(timelines_[each.value]);
        if (retired_.size() <= kRetiredKept) break;
      }
      return {};
    }
    oldest = now(retired_.front());
  }
  // An error is not this caller's: the event stays, and is waited for again.
  (void)host_wait(oldest);
  return {};
}

bool Timelines::settle() {
  const MutexLock lock(mutex_);
  bool all = true;
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    Timeline& each = timelines_[i];
    if (each.retired || each.stream.is_all() != (trust_ == Trust::context)) continue;
    Status status;  // of a stream that is no more, or captured: what it was to say is said later
    all = covering(each, each.point.load(), status) != nullptr && all;
  }
  return all;
}

void Timelines::drop_events(bool complete) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    if (complete) ask_about_last_event(timelines_[i]);
    timelines_[i].keep_last_event(events_);
  }
  events_.keep(complete ? 0 : kSpareKept);
}

// What another thread has seen complete meanwhile, the clock may have forgotten.
inline Sequence Timelines::past(const Timeline& waiter, const Timeline& of) const {
  const Sequence known = std::max(of.complete.load(), waiter.clock.at(of.id));
  if (trust_ == Trust::told) return known;
  return std::max(known, of.covered_by(waiter.clock.at(context_)));
}

Sequence Timelines::past(TimelineId waiter, TimelineId of) const {
  const MutexLock lock(mutex_);
  return past(timelines_[waiter.value], timelines_[of.value]);
}

bool Timelines::satisfied(const FenceSet& fences, TimelineId waiter) const {
  return std::all_of(fences.begin(), fences.end(), [&](Fence fence) {
    return fence.timeline == waiter || is_complete(fence) ||
           fence.sequence <= past(waiter, fence.timeline);
  });
}

Status Timelines::wait(TimelineId waiter, const FenceSet& fences, HeapFold* heap, FenceSet* made) {
  for (const Fence fence : fences) {
    if (fence.timeline == waiter || is_complete(fence)) continue;
    const MutexLock lock(mutex_);
    Timeline& mine = timelines_[waiter.value];
    Timeline& other = timelines_[fence.timeline.value];
    if (fence.sequence <= past(mine, other)) continue;
    Status status;
    const Recorded* const recorded = covering(other, fence.sequence, status);
    if (status) status = captures_.not_captured(mine.stream);
    if (status) status = device_.wait(mine.stream, recorded->event);
    if (!status) return status;
    const auto is_done = [this](Fence old) { return is_complete(old); };
    mine.clock.join(recorded->clock, is_done);
    mine.clock.raise({fence.timeline, recorded->sequence}, is_done);
    learn();
    if (made != nullptr) made->join(fence);
    const Event event{.kind = EventKind::stream_wait,
                      .heap = kNoHeap,
                      .stream = mine.stream.id,
                      .other = other.stream.id,
                      .sequence = fence.sequence};
    if (heap == nullptr) {
      observer_.emit(event);
    } else {
      observer_.emit(*heap, event);
    }
  }
  return {};
}

// Whatever else the fence's stream had waited for by then is not looked up: less is known so.
void Timelines::note_waited(TimelineId waiter, Fence fence) {
  if (fence.timeline == waiter) return;
  const MutexLock lock(mutex_);
  timelines_[waiter.value].clock.raise(fence, [this](Fence old) { return is_complete(old); });
  learn();
}

Result<bool> Timelines::complete(const FenceSet& fences, Asks asks) {
  for (const Fence fence : fences) {
    if (is_complete(fence)) continue;
    const MutexLock lock(mutex_);
    if (is_complete(fence)) continue;  // another thread saw it
    Timeline& mine = timelines_[fence.timeline.value];
    if (polls_ == Polls::no && !mine.stream.is_in_capture()) return false;
    Status status;
    const Recorded* recorded = mine.covering(fence.sequence);
    if (recorded == nullptr) {
      // (Asked for each piece of free memory: there an error for each would be the whole cost.)
      if (mine.stream.is_all() && !captures_.has_context_events()) return false;
      recorded = covering(mine, fence.sequence, status);
    }
    if (recorded == nullptr) {
      if (mine.stream.is_all() && status.error().code() == ErrorCode::capture) return false;
      return std::move(status).error();
    }
    Result<bool> done = device_.query(recorded->event);
    if (!done || !*done) return done;
    if (asks == Asks::remembers) mark_complete(mine, recorded->sequence);
  }
  return true;
}

Result<bool> Timelines::over_or_wait(const FenceSet& fences, Asks asks) {
  if (polls_ == Polls::yes) return complete(fences, asks);
  bool recorded = true;
  for (const Fence fence : fences) {
    if (stream(fence.timeline).is_in_capture()) {
      Result<bool> past = complete(fence, asks);
      if (!past || !*past) return past;
      continue;
    }
    const MutexLock lock(mutex_);
    Timeline& mine = timelines_[fence.timeline.value];
    if (is_complete(fence) || mine.covering(fence.sequence) != nullptr) continue;
    recorded = false;
    Status status;
    if (covering(mine, fence.sequence, status) == nullptr) return std::move(status).error();
  }
  if (!recorded) return false;
  for (const Fence fence : fences) {
    if (Status waited = host_wait(fence, /*all=*/false); !waited) return std::move(waited).error();
  }
  return true;
}

Status Timelines::host_wait(const FenceSet& fences) {
  for (const Fence fence : fences) {
    if (Status waited = host_wait(fence); !waited) return waited;
  }
  return {};
}

// The host waits for a new event: it is then past all work queued so far, and more memory is idle.
// The event stays meanwhile, with all others of its timeline. Of a stream that may be gone none can
// be recorded; where there is none, nor one of the whole context now, the host waits for all there
// is.
Status Timelines::host_wait(Fence fence, bool all) {
  Timeline& mine = timelines_[fence.timeline.value];
  std::optional<Recorded> event;
  {
    const MutexLock lock(mutex_);
    if (is_complete(fence)) return {};
    Status status;
    const Recorded* const recorded = !all || (mine.stream.may_end && !mine.retired)
                                         ? mine.covering(fence.sequence)
                                         : covering(mine, mine.point.load(), status);
    if (recorded != nullptr) {
      event = *recorded;
      ++mine.host_waits;
    } else if (!mine.stream.may_end &&
               !(mine.stream.is_all() && status.error().code() == ErrorCode::capture)) {
      return status;
    } else if (mine.point.load() == fence.sequence) {
      // The point is used up: what is queued from now on is another's.
      mine.point.store({fence.sequence.value + 1});
    }
  }
  const Nanoseconds start = device_.now();
  Status waited = event ? device_.synchronize(event->event) : device_.synchronize_context();
  const MutexLock lock(mutex_);
  if (event) --mine.host_waits;
  if (!waited) return waited;
  if (event) fence.sequence = event->sequence;
  mark_complete(mine, fence.sequence);
  observer_.emit(Event{.kind = EventKind::host_wait,
                       .other = mine.stream.id,
                       .sequence = fence.sequence,
                       .duration = device_.now() - start});
  return {};
}

void Timelines::mark_complete(Timeline& timeline, Sequence sequence) {
  timeline.complete.store(std::max(timeline.complete.load(), sequence));
  learn();
  if (timeline.host_waits > 0) return;  // who waits last comes by here
  while (!timeline.events.empty() && timeline.is_complete(timeline.events.front().sequence)) {
    timeline.drop_first_event(events_);
  }
  if (!timeline.retired || !timeline.events.empty()) return;
  timeline.clock = {};
  timeline.events = {};
  std::erase(retired_, timeline.id);
}

// An error is not this caller's: the event stays, and is asked about again.
void Timelines::ask_about_last_event(Timeline& timeline) {
  if (timeline.events.empty()) return;
  const Recorded& last = timeline.events.back();
  const Result<bool> done = device_.query(last.event);
  if (done && *done) mark_complete(timeline, last.sequence);
}

std::vector<std::string> Timelines::validate() const {
  const MutexLock lock(mutex_);
  Broken broken;
  std::set<EventHandle> kept;
  const auto keep = [&](EventHandle event) {
    broken.note_if(!kept.insert(event).second, "timelines: an event is kept twice");
  };
  for (const EventHandle event : events_.spare()) keep(event);
  broken.note_if(by_stream_.size() != timelines_.size(),
                 "timelines: streams and timelines differ in number");
  std::size_t retired = 0;
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    const Timeline& mine = timelines_[i];
    retired += mine.retired && !mine.events.empty() ? 1 : 0;
    const std::string name = "timeline " + std::to_string(i);
    const auto validate = [&](const VectorClock& clock) {
      std::optional<TimelineId> last;
      for (const Fence fence : clock) {
        broken.note_if(last && fence.timeline <= *last, name,
                       "a clock is not in order of timelines");
        last = fence.timeline;
        const bool is_there = fence.timeline.value < timelines_.size();
        broken.note_if(!is_there, name, "waited for a timeline that is not there");
        if (is_there && fence.sequence > timelines_[fence.timeline.value].latest()) {
          broken.rules.push_back(name + ": waited for an event that timeline " +
                                 std::to_string(fence.timeline.value) + " never recorded");
        }
      }
      broken.note_if(clock.size() > VectorClock::kMost, name,
                     "a clock knows of too many timelines");
    };
    const auto known = by_stream_.find(mine.stream.id);
    broken.note_if(known == by_stream_.end() || known->second != mine.id, name,
                   "its stream has another timeline, or none");
    validate(mine.clock);
    Sequence last{0};
    for (std::size_t e = 0; e < mine.events.size(); ++e) {
      const Recorded& recorded = mine.events[e];
      keep(recorded.event);
      broken.note_if(recorded.sequence <= last, name, "its events do not rise");
      last = recorded.sequence;
      validate(recorded.clock);
    }
    broken.note_if(last > mine.latest(), name, "an event is from the future");
    broken.note_if(mine.complete.load() > mine.latest(), name, "complete beyond its last event");
    // What is complete needs no event any more.
    broken.note_if(mine.retired && mine.events.empty() && !mine.is_complete(mine.latest()), name,
                   "retired without its last event");
  }
  broken.note_if(retired != retired_.size(),
                 "timelines: the retired streams that have an event are not those listed");
  return broken.rules;
}

}  // namespace weir
