// Time: which work has been waited for by whom. Knows nothing of memory.
//
// A timeline is a stream's, and outlives it. A point on it ("all work queued on the stream so far")
// costs nothing to take: only when another stream must wait for it is an event recorded, which then
// serves all earlier points too. Each timeline remembers what it waited for (a vector clock), so no
// known wait is made twice. Source: Mattern 1989, "Virtual Time and Global States".
//
// Threads: self-synchronised, by a lock that is taken after every other of Weir's.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/observer.h"
#include "core/thread_annotations.h"
#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// A timeline's number, from 0, dense; never reused.
struct TimelineId {
  std::uint32_t value = 0;
  constexpr auto operator<=>(const TimelineId&) const = default;
};

// A point on a timeline. Satisfied for another timeline once that one, or the host, is known to be
// past it; a satisfied fence never becomes unsatisfied.
struct Fence {
  TimelineId timeline;
  Sequence sequence;
  friend bool operator==(const Fence&, const Fence&) = default;
};

// At most one fence a timeline, the latest: it implies the earlier ones. Not thread-safe.
class FenceSet {
 public:
  void join(Fence fence);
  void join(const FenceSet& other);
  bool empty() const { return fences_.empty(); }
  void clear() { fences_.clear(); }
  auto begin() const { return fences_.begin(); }
  auto end() const { return fences_.end(); }
  std::size_t size() const { return fences_.size(); }
  friend bool operator==(const FenceSet&, const FenceSet&) = default;

 private:
  std::vector<Fence> fences_;
};

class Timelines {
 public:
  Timelines(Device& device, Observer& observer);
  ~Timelines();
  Timelines(const Timelines&) = delete;
  Timelines& operator=(const Timelines&) = delete;

  // The timeline of `stream`, new if need be.
  TimelineId of(Stream stream);
  Stream stream(TimelineId timeline) const;

  // All work queued on the stream so far. Free. (Work queued later, before somebody waits, may be
  // waited for as well.)
  Fence now(TimelineId timeline) const;
  // The same, exactly, and for a stream that may be destroyed before anybody waits: one event.
  Result<Fence> record(TimelineId timeline);
  // Takes the last fence of a stream that is about to be destroyed. Nothing is recorded on it
  // again.
  Status retire(TimelineId timeline);
  bool retired(TimelineId timeline) const;

  // Is `waiter` known to run after `fence`? Its own fences always are.
  bool satisfied(Fence fence, TimelineId waiter) const;
  bool satisfied(const FenceSet& fences, TimelineId waiter) const;
  // Makes work queued on `waiter` from now on run after the fences, on the GPU. On an error those
  // waited for so far are remembered as such. Returns how many waits were made.
  Result<std::uint32_t> wait(TimelineId waiter, const FenceSet& fences);

  // Is all of it known, or now seen, to be complete? Asks the device at most once a fence.
  Result<bool> complete(const FenceSet& fences);
  // Blocks the calling thread until all of it is. No lock of Weir's is held while it blocks.
  Status host_wait(const FenceSet& fences);

  // Broken invariants, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  using Clock = std::vector<Sequence>;  // by TimelineId; absent: 0

  struct Recorded {
    Sequence sequence;
    EventHandle event;
    Clock clock;  // what the timeline had waited for when the event was recorded
  };
  struct Timeline {
    Stream stream;
    Sequence next{1};             // of the next event; points taken now have it
    Sequence complete{0};         // the host knows work up to here to be done
    Clock clock;                  // what it has waited for
    std::deque<Recorded> events;  // rising
    bool retired = false;
  };

  struct Borrowed {
    EventHandle event;
    Sequence sequence;
    bool own = false;
    bool needed = true;
  };
  Result<Borrowed> borrow_event(Fence fence) WEIR_EXCLUDES(mutex_);

  static void join(Clock& clock, const Clock& other);
  static void raise(Clock& clock, TimelineId timeline, Sequence sequence);
  bool is_satisfied(Fence fence, TimelineId waiter) const WEIR_REQUIRES(mutex_);
  // The earliest event that covers `fence`, recorded now if there is none.
  Result<const Recorded*> covering(Fence fence) WEIR_REQUIRES(mutex_);
  Result<const Recorded*> record_event(TimelineId timeline) WEIR_REQUIRES(mutex_);
  Result<EventHandle> take_event() WEIR_REQUIRES(mutex_);
  void mark_complete(TimelineId timeline, Sequence sequence) WEIR_REQUIRES(mutex_);

  Device& device_;
  Observer& observer_;

  mutable Mutex mutex_;
  std::vector<Timeline> timelines_ WEIR_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, TimelineId> by_stream_ WEIR_GUARDED_BY(mutex_);
  std::vector<EventHandle> spare_events_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
