// SPDX-License-Identifier: Apache-2.0
#include "core/time/timelines.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/mutation.h"

namespace weir {
namespace {

// How many retired streams the device is asked about at a time.
constexpr int kRetiredAsked = 4;

std::atomic<std::uint64_t> the_next_serial{1};

// The streams that a thread looked up last. A stream's timeline never changes, and a serial number
// is never used again, so nothing here can be out of date.
struct Known {
  std::uint64_t serial = 0;
  std::uint64_t stream = 0;
  TimelineId timeline;
};
constinit thread_local std::array<Known, 8> the_known;

// Apart from the path that succeeds, which stays short.
[[gnu::cold, gnu::noinline]] Error not_recorded(Stream stream, Error error) {
  if (error.code() != ErrorCode::device) return error;
  return {ErrorCode::device,
          "no event can be recorded on stream " + std::to_string(stream.id) + ": " +
              error.message() +
              ". If the stream was destroyed without retire(): what it used last can't go to other "
              "streams; call retire() before a stream is destroyed"};
}

}  // namespace

Timelines::Timelines(Device& device, Observer& observer, OpenCaptures& captures, Trust trust)
    : device_(device),
      observer_(observer),
      captures_(captures),
      trust_(trust),
      serial_(the_next_serial.fetch_add(1)) {
  if (trust == Trust::context) context_ = find_or_add(Stream::all());
}

Timelines::~Timelines() {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < timelines_.size(); ++i) {
    const RecordedEvents& events = timelines_[i].events;
    for (std::size_t e = 0; e < events.size(); ++e) spare_events_.push_back(events[e].event);
  }
  // An event that the driver will not destroy is the driver's to keep: nobody is left to tell.
  for (const EventHandle event : spare_events_) (void)device_.destroy_event(event);
}

TimelineId Timelines::of(Stream stream) {
  Known& known = the_known[stream.id % the_known.size()];
  if (known.serial != serial_ || known.stream != stream.id) {
    known = {serial_, stream.id, find_or_add(stream)};
  }
  return known.timeline;
}

TimelineId Timelines::find_or_add(Stream stream) {
  const MutexLock lock(mutex_);
  const TimelineId next{static_cast<std::uint32_t>(timelines_.size())};
  const auto [known, is_new] = by_stream_.try_emplace(stream.id, next);
  if (is_new) {
    timelines_.push_back(Timeline{.id = next, .stream = stream, .clock = {}, .events = {}});
    if (!stream.is_in_capture()) captures_.meet(stream);
  }
  return known->second;
}

std::optional<Stream> Timelines::latest(void* handle) const {
  const MutexLock lock(mutex_);
  for (std::size_t i = timelines_.size(); i-- > 0;) {
    const Timeline& each = at({static_cast<std::uint32_t>(i)});
    if (each.stream.handle == handle && !each.retired) return each.stream;
  }
  return std::nullopt;
}

std::vector<Stream> Timelines::streams() const {
  const MutexLock lock(mutex_);
  std::vector<Stream> streams;
  for (std::uint32_t i = 0; i < timelines_.size(); ++i) {
    const Timeline& each = at({i});
    if (!each.retired && !each.stream.is_all()) streams.push_back(each.stream);
  }
  return streams;
}

Result<Fence> Timelines::record(TimelineId timeline) {
  const MutexLock lock(mutex_);
  // Nothing runs on a retired stream any more: its last event says all.
  Timeline& mine = at(timeline);
  if (mine.retired) return now(timeline);
  if (mutation::left_out(mutation::Site::fence_records)) return Fence{timeline, Sequence{0}};
  Status status;
  const Recorded* const recorded = record_event(mine, status);
  if (recorded == nullptr) return std::move(status).error();
  return Fence{timeline, recorded->sequence};
}

Status Timelines::order(TimelineId earlier, TimelineId later) {
  if (earlier == later) return {};
  const MutexLock lock(mutex_);
  Timeline& first = at(earlier);
  Fence fence = now(earlier);
  if (!first.retired) {
    if (mutation::left_out(mutation::Site::fence_records)) return {};
    Status status;
    const Recorded* const recorded = record_event(first, status);
    if (recorded == nullptr) return status;
    fence.sequence = recorded->sequence;
  }
  Result<bool> waited = wait(at(later), first, fence);
  if (!waited) return std::move(waited).error();
  if (*waited) note_stream_wait(later, fence, nullptr);
  return {};
}

Status Timelines::retire(TimelineId timeline) {
  const MutexLock lock(mutex_);
  Timeline& mine = at(timeline);
  if (mine.retired) return {};
  if (mutation::left_out(mutation::Site::retire_records)) {
    mine.complete.store(mine.point.load());
  } else if (Status status; record_event(mine, status) != nullptr) {
    // Whoever took a point meanwhile may have the one after it.
    mine.events[mine.events.size() - 1].sequence = mine.point.load();
    keep_last_event(mine);
    retired_.push_back(timeline);
  } else {
    return status;
  }
  mine.retired = true;
  captures_.forget(mine.stream);
  ask_about_retired();
  return {};
}

bool Timelines::retired(TimelineId timeline) const {
  const MutexLock lock(mutex_);
  return at(timeline).retired;
}

bool Timelines::retired(Stream stream) const {
  const MutexLock lock(mutex_);
  const auto met = by_stream_.find(stream.id);
  return met != by_stream_.end() && at(met->second).retired;
}

bool Timelines::has_met(Stream stream) const {
  const MutexLock lock(mutex_);
  return by_stream_.contains(stream.id);
}

bool Timelines::satisfied(Fence fence, TimelineId waiter) const {
  if (fence.timeline == waiter || is_complete(fence)) return true;
  const MutexLock lock(mutex_);
  // What another thread has seen complete meanwhile, the clock may have forgotten.
  return is_complete(fence) || fence.sequence <= at(waiter).clock.at(fence.timeline);
}

Sequence Timelines::past(TimelineId waiter, TimelineId of) const {
  const MutexLock lock(mutex_);
  return std::max(at(of).complete.load(), at(waiter).clock.at(of));
}

bool Timelines::satisfied(const FenceSet& fences, TimelineId waiter) const {
  return std::all_of(fences.begin(), fences.end(),
                     [&](Fence fence) { return satisfied(fence, waiter); });
}

Result<bool> Timelines::wait(TimelineId waiter, Fence fence) {
  if (fence.timeline == waiter) return false;
  Timeline& other = timelines_[fence.timeline.value];
  if (other.is_complete(fence.sequence)) return false;
  const MutexLock lock(mutex_);
  return wait(at(waiter), other, fence);
}

Status Timelines::wait(TimelineId waiter, const FenceSet& fences, HeapFold* heap, FenceSet* made) {
  for (const Fence fence : fences) {
    Result<bool> waits = wait(waiter, fence);
    if (!waits) return std::move(waits).error();
    if (!*waits) continue;
    if (made != nullptr) made->join(fence);
    note_stream_wait(waiter, fence, heap);
  }
  return {};
}

void Timelines::note_waited(TimelineId waiter, Fence fence) {
  if (fence.timeline == waiter || is_complete(fence)) return;
  const MutexLock lock(mutex_);
  Timeline& mine = at(waiter);
  if (fence.sequence <= mine.clock.at(fence.timeline)) return;
  // Whatever else the fence's stream had waited for by then is not looked up: less is known so.
  mine.clock.raise({.timeline = fence.timeline, .moment = 0, .sequence = fence.sequence},
                   [this](Fence old) { return is_complete(old); });
  mine.clock_moved = true;
}

void Timelines::note_stream_wait(TimelineId waiter, Fence fence, HeapFold* heap) {
  const Event event{.kind = EventKind::stream_wait,
                    .heap = kNoHeap,
                    .stream = stream(waiter).id,
                    .other = stream(fence.timeline).id,
                    .sequence = fence.sequence};
  if (heap == nullptr) return observer_.emit(event);
  observer_.emit(*heap, event);
}

// (Inline, like those below that it calls: in a library that may be a shared one, the compiler has
// to be told that nobody else's definition can take their place.)
[[gnu::always_inline]] inline Result<bool> Timelines::wait(Timeline& waiter, Timeline& other,
                                                           Fence fence) {
  VectorClock::Entry* known = waiter.clock.find(fence.timeline);
  if (known != nullptr && fence.sequence <= known->sequence) return false;
  if (other.is_complete(fence.sequence)) return false;  // another thread saw it
  Status status;
  const Recorded* const found = covering(other, fence.sequence, status);
  if (found == nullptr) return std::move(status).error();
  const Recorded& recorded = *found;
  status = not_captured(waiter.stream);
  if (status) status = device_.wait(waiter.stream, recorded.event);
  if (!status) return std::move(status).error();
  waiter.clock_moved = true;
  if (known != nullptr && known->moment == recorded.moment) {
    known->sequence = recorded.sequence;
    return true;
  }
  const auto is_done = [this](Fence old) { return is_complete(old); };
  if (recorded.moment != 0) waiter.clock.join(other.events.clock_of(recorded), is_done, joined_);
  waiter.clock.raise({fence.timeline, recorded.moment, recorded.sequence}, is_done);
  return true;
}

Result<bool> Timelines::complete(const FenceSet& fences) { return ask(fences, /*remember=*/true); }

Result<bool> Timelines::looks_complete(const FenceSet& fences) {
  return ask(fences, /*remember=*/false);
}

Result<bool> Timelines::ask(const FenceSet& fences, bool remember) {
  for (const Fence fence : fences) {
    if (is_complete(fence)) continue;
    const MutexLock lock(mutex_);
    if (is_complete(fence)) continue;  // another thread saw it
    Status status;
    Timeline& mine = at(fence.timeline);
    const Recorded* const recorded = covering(mine, fence.sequence, status);
    if (recorded == nullptr) {
      if (mine.stream.is_all() && status.error().code() == ErrorCode::capture) return false;
      return std::move(status).error();
    }
    const Sequence sequence = recorded->sequence;
    Result<bool> done = device_.query(recorded->event);
    if (!done) return std::move(done).error();
    if (!*done) return false;
    if (remember) mark_complete(fence.timeline, sequence);
  }
  return true;
}

Status Timelines::host_wait(const FenceSet& fences) {
  for (const Fence fence : fences) {
    Result<Borrowed> borrowed = borrow_event(fence);
    if (!borrowed) {
      if (!waits_by_context(fence, borrowed.error())) return std::move(borrowed).error();
      if (Status waited = host_wait_for_context(fence); !waited) return waited;
      continue;
    }
    if (!borrowed->needed) continue;
    const Nanoseconds start = device_.now();
    Status status = device_.synchronize(borrowed->event);
    const MutexLock lock(mutex_);
    give_back(fence.timeline, *borrowed);
    if (!status) return status;
    mark_complete(fence.timeline, borrowed->sequence);
    note_host_wait({fence.timeline, borrowed->sequence}, start);
  }
  return {};
}

// Where no event may be recorded, the host waits for all there is.
bool Timelines::waits_by_context(Fence fence, const Error& error) const {
  const Stream of = stream(fence.timeline);
  return (of.is_all() && error.code() == ErrorCode::capture) || of.may_end;
}

Status Timelines::host_wait_for_context(Fence fence) {
  const Nanoseconds start = device_.now();
  {
    // The point is used up: what is queued from now on is another's.
    const MutexLock lock(mutex_);
    Timeline& mine = at(fence.timeline);
    if (mine.point.load() == fence.sequence) mine.point.store({fence.sequence.value + 1});
  }
  if (Status waited = device_.synchronize_context(); !waited) return waited;
  const MutexLock lock(mutex_);
  mark_complete(fence.timeline, fence.sequence);
  note_host_wait(fence, start);
  return {};
}

void Timelines::note_host_wait(Fence fence, Nanoseconds start) {
  observer_.emit(Event{.kind = EventKind::host_wait,
                       .other = stream(fence.timeline).id,
                       .sequence = fence.sequence,
                       .duration = device_.now() - start});
}

// The events of a timeline may be recorded again while nobody holds the lock, so the host waits for
// one of its own; but for a retired timeline's last event, which stays as long as somebody does;
// and for those of a stream that may be gone, where it may have to wait longer.
Result<Timelines::Borrowed> Timelines::borrow_event(Fence fence) {
  const MutexLock lock(mutex_);
  Timeline& mine = at(fence.timeline);
  if (is_complete(fence)) return Borrowed{.needed = false};
  if (mine.retired) {
    ++mine.host_waits;
    return Borrowed{.event = mine.events.back().event, .sequence = mine.events.back().sequence};
  }
  if (mine.stream.may_end) {
    const Recorded* const recorded = mine.events.covering(fence.sequence);
    if (recorded == nullptr) return Error(ErrorCode::capture, "no event was recorded in time");
    ++mine.host_waits;
    return Borrowed{.event = recorded->event, .sequence = recorded->sequence};
  }
  if (Status status = have_spare_event(); !status) return std::move(status).error();
  const Sequence sequence = mine.point.load();
  const EventHandle event = take_spare_event();
  if (Status status = record_on(mine, event); !status) return std::move(status).error();
  return Borrowed{.event = event, .sequence = sequence, .own = true};
}

void Timelines::give_back(TimelineId timeline, const Borrowed& borrowed) {
  if (borrowed.own) {
    spare_events_.push_back(borrowed.event);
  } else {
    --at(timeline).host_waits;
  }
}

inline const Recorded* Timelines::covering(Timeline& timeline, Sequence sequence, Status& status) {
  if (const Recorded* const earliest = timeline.events.covering(sequence)) return earliest;
  return record_event(timeline, status);
}

inline const Recorded* Timelines::record_event(Timeline& timeline, Status& status) {
  if (spare_events_.empty()) [[unlikely]] {
    status = have_spare_event();
    if (!status) return nullptr;
  }
  const Sequence sequence = timeline.point.load();
  const EventHandle event = take_spare_event();
  status = record_on(timeline, event);
  if (!status) return nullptr;
  if (timeline.events.full()) {
    // Whoever waits for an event from now on waits for its latest record; whoever waits already
    // waits for the record made before. So it may be recorded again at once.
    spare_events_.push_back(timeline.events.front().event);
    timeline.events.pop();
  }
  if (std::exchange(timeline.clock_moved, false)) timeline.events.new_moment(timeline.clock);
  if (!timeline.listed && !timeline.stream.is_all()) {
    timeline.listed = true;
    recorded_.push_back(&timeline);
  }
  return &timeline.events.push(sequence, event);
}

// Uses up a sequence. Points are taken without the lock, and one taken while the driver records is
// to be covered by a later event: so the sequence is used up first, come what may.
[[gnu::always_inline]] inline Status Timelines::record_on(Timeline& timeline, EventHandle event) {
  timeline.point.store({timeline.point.load().value + 1});
  Status status = timeline.stream.is_all() ? record_context(timeline, event)
                                           : record_beside_captures(timeline.stream, event);
  if (status) [[likely]]
    return status;
  spare_events_.push_back(event);
  return not_recorded(timeline.stream, std::move(status).error());
}

// A program may begin to capture the stream at any moment. Then what was recorded may be the
// capture's, and to ask about it would break that.
Status Timelines::record_beside_captures(Stream stream, EventHandle event) {
  if (Status free = not_captured(stream); !free) return free;
  if (Status recorded = device_.record(event, stream); !recorded) return recorded;
  return not_captured(stream);
}

// What a pool's own capture orders is the pool device's to judge.
Status Timelines::not_captured(Stream stream) {
  return stream.is_in_capture() ? Status{} : captures_.not_captured(stream);
}

// Whoever waits for the event is past every event that was recorded before it.
Status Timelines::record_context(Timeline& context, EventHandle event) {
  Status status = captures_.record_context([&] {
    Status recorded = device_.record_context(event);
    if (!recorded && recorded.error().code() != ErrorCode::device) {
      captures_.forgo_context_events(recorded.error().code() == ErrorCode::unavailable
                                         ? ContextEventsLost::unavailable
                                         : ContextEventsLost::refused);
    }
    return recorded;
  });
  if (!status) {
    if (status.error().code() != ErrorCode::unavailable) return status;
    // Which of the two it is makes no difference to who can't wait.
    return Error(ErrorCode::capture, status.error().message());
  }
  const auto is_done = [this](Fence old) { return is_complete(old); };
  std::erase_if(recorded_, [&](Timeline* const each) {
    each->listed = !each->events.empty();
    if (!each->listed) return true;
    const Sequence last = each->events.back().sequence;
    if (!each->is_complete(last)) context.clock.raise({each->id, 0, last}, is_done);
    context.clock_moved = true;
    return false;
  });
  return {};
}

bool Timelines::settle() {
  const MutexLock lock(mutex_);
  if (trust_ == Trust::context) {
    Status status;
    return record_event(at(context_), status) != nullptr;
  }
  bool all = true;
  for (std::uint32_t i = 0; i < timelines_.size(); ++i) {
    Timeline& timeline = at({i});
    if (timeline.retired || timeline.stream.is_all()) continue;
    Status status;  // of a stream that is no more, or captured: what it was to say is said later
    all = record_event(timeline, status) != nullptr && all;
  }
  return all;
}

Status Timelines::have_spare_event() {
  if (!spare_events_.empty()) return {};
  Result<EventHandle> event = device_.create_event();
  if (!event) return std::move(event).error();
  spare_events_.push_back(*event);
  return {};
}

inline EventHandle Timelines::take_spare_event() {
  const EventHandle event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

// It covers the others.
void Timelines::keep_last_event(Timeline& timeline) {
  if (timeline.host_waits > 0) return;  // for any of them
  timeline.events.keep_last(spare_events_);
}

// Those that the driver will not destroy stay.
void Timelines::destroy_spare_events(std::size_t keep) {
  while (spare_events_.size() > keep && device_.destroy_event(spare_events_.back())) {
    spare_events_.pop_back();
  }
}

void Timelines::drop_old_events() {
  const MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < timelines_.size(); ++i) keep_last_event(at({i}));
  destroy_spare_events(kSpareKept);
}

void Timelines::drop_complete_events() {
  const MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < timelines_.size(); ++i) {
    Timeline& timeline = at({i});
    if (timeline.events.empty()) continue;
    const Recorded last = timeline.events.back();
    const Result<bool> done = device_.query(last.event);
    if (done && *done) mark_complete({i}, last.sequence);
    keep_last_event(timeline);
  }
  destroy_spare_events(0);
  if (spare_events_.empty()) spare_events_ = {};
}

void Timelines::mark_complete(TimelineId timeline, Sequence sequence) {
  Timeline& mine = at(timeline);
  mine.complete.store(std::max(mine.complete.load(), sequence));
  if (mine.host_waits > 0) return;  // who waits last comes by here
  while (!mine.events.empty() && mine.is_complete(mine.events.front().sequence)) {
    spare_events_.push_back(mine.events.front().event);
    mine.events.pop();
  }
  if (!mine.retired || !mine.events.empty()) return;
  mine.clock.reset();
  mine.events.reset();
  std::erase(retired_, timeline);
}

// An error is not this caller's: the event stays, and is asked about again.
void Timelines::ask_about_retired() {
  if (retired_.size() <= kRetiredKept) return;
  std::vector<TimelineId> oldest(retired_.begin(), retired_.begin() + kRetiredAsked);
  for (const TimelineId timeline : oldest) {
    const Recorded& last = at(timeline).events.back();
    const Result<bool> done = device_.query(last.event);
    if (done && *done) mark_complete(timeline, last.sequence);
    if (retired_.size() <= kRetiredKept) return;
  }
}

}  // namespace weir
