// SPDX-License-Identifier: Apache-2.0
// Time: which work has been waited for by whom. Knows nothing of memory.
//
// A timeline is a stream's, and outlives it. A point on it ("all work queued on the stream so far")
// costs nothing to take: only when another stream must wait for it is an event recorded, which then
// serves all earlier points too. Each timeline remembers what it waited for (a vector clock), so no
// known wait is made twice. Source: Mattern 1989, "Virtual Time and Global States".
//
// A stream must be retired before it is destroyed. Of one that was not, nothing more can be learnt:
// where somebody must wait for it, the driver is asked to record an event on a handle that is no
// stream's (or, worse, a new stream's that was given the same handle). Where it refuses, the error
// names the stream and the remedy; the memory is not given out, and not unmapped.
//
// Beside the streams' there is a timeline of the whole context (Stream::all()): a point on it is
// all work queued so far on every stream of the process, known here or not. Its events are recorded
// by Device::record_context(), which would break a capture, so OpenCaptures is asked before. Where
// no such event may be recorded, wait() is an error (capture), complete() says no, and host_wait()
// waits by Device::synchronize_context().
//
// Threads: self-synchronised, by a lock that is taken after those of heaps and pages.
// (OpenCaptures', the observer's and the device's come after it.) Points, streams, and what the
// host knows to be complete are read without it; so are streams that this thread looked up before.
// Record, wait and query are driver calls made under it.
//
// More than 25 methods: points, events, clocks and their ends share one table under one lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/stable_vector.h"
#include "core/time/fence_set.h"
#include "core/time/open_captures.h"
#include "core/time/recorded_events.h"
#include "core/time/vector_clock.h"
#include "observe/observer.h"
#include "weir/device.h"
#include "weir/heap_types.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class Timelines {
 public:
  // `captures` must outlive this.
  Timelines(Device& device, Observer& observer, OpenCaptures& captures, Trust trust = Trust::told);
  ~Timelines();
  Timelines(const Timelines&) = delete;
  Timelines& operator=(const Timelines&) = delete;

  // The timeline of `stream`, new if need be.
  TimelineId of(Stream stream);
  Stream stream(TimelineId timeline) const { return timelines_[timeline.value].stream; }

  // The stream of this handle that was met last, unless it was retired. (It may be gone all the
  // same, and another have its handle.)
  std::optional<Stream> latest(void* handle) const;

  // All work queued on the stream so far. Free. (Work queued later, before somebody waits, may be
  // waited for as well.)
  Fence now(TimelineId timeline) const {
    return {timeline, timelines_[timeline.value].point.load()};
  }
  // What must be waited for before free memory of the stream's serves anybody else: its own work so
  // far, where every other use was told; all work so far of all streams, where it need not be.
  Fence release_point(TimelineId timeline) const {
    return now(trust_ == Trust::context ? context_ : timeline);
  }
  // The release point with this sequence number.
  Fence release_point(TimelineId timeline, Sequence sequence) const {
    return {trust_ == Trust::context ? context_ : timeline, sequence};
  }
  Trust trust() const { return trust_; }
  // Like now(), but records an event at once: covers exactly the work so far, and stays valid if
  // the stream is destroyed.
  Result<Fence> record(TimelineId timeline);
  // Like record(), for the work of all streams of the context. Errors: capture (a stream is being
  // captured, so that no such event may be recorded); device.
  Result<Fence> record_all() { return record(of(Stream::all())); }
  // record(earlier), and `later` waits for it: at once.
  Status order(TimelineId earlier, TimelineId later);
  // Takes the last fence of a stream that is about to be destroyed. Nothing is recorded on it
  // again. Its event is kept until it is seen complete: by complete() or host_wait(); or, once
  // kRetiredKept more streams were retired, in retire(), which asks the device about a few.
  Status retire(TimelineId timeline);
  bool retired(TimelineId timeline) const;
  // False of a stream that was never met here.
  bool retired(Stream stream) const;
  bool has_met(Stream stream) const;

  // Records what was not recorded yet, wherever that can be done: on every stream, or, where uses
  // need not be told, of the whole context. Somebody may have to wait for it when it no longer can.
  // Returns whether all was recorded; then there is no need to again until more points are taken.
  bool settle();

  // For who has no memory left. Of each timeline all events go but the last, which covers what they
  // did; and of spare ones all but a few.
  void drop_old_events();
  // The same, but for a few; and the last go too where the device says that they are complete. (It
  // is asked: where there is no memory, its answer can't change where memory is placed.)
  void drop_complete_events();

  // Errors: capture (somebody captures the stream, which is not a pool's own capture); device.
  Status not_captured(TimelineId timeline) { return not_captured(stream(timeline)); }

  // Is `waiter` known to run after `fence`? Its own fences always are.
  bool satisfied(Fence fence, TimelineId waiter) const;
  bool satisfied(const FenceSet& fences, TimelineId waiter) const;
  // Up to which point of `of` is `waiter` known to run after it?
  Sequence past(TimelineId waiter, TimelineId of) const;
  // Makes work queued on `waiter` from now on run after the fences, on the GPU. Fences that it is
  // known to be past cost nothing. Each wait that is made is an event (stream_wait), counted by
  // `heap`, whose lock the caller holds, or by no heap, and is added to `made`, if given. On an
  // error the waits made so far stand, and are remembered.
  Status wait(TimelineId waiter, const FenceSet& fences, HeapFold* heap = nullptr,
              FenceSet* made = nullptr);

  // `waiter` runs after the fence, as the program has made it wait, by calls of its own.
  void note_waited(TimelineId waiter, Fence fence);

  // Those that were not retired; without the whole context.
  std::vector<Stream> streams() const;
  // All work so far on all streams that `of(Stream)` is true of; that of the whole context is asked
  // about too.
  template <class Of>
  FenceSet all(Of&& of) const {
    FenceSet fences;
    for (std::uint32_t i = 0; i < timelines_.size(); ++i) {
      if (of(stream({i}))) fences.join(now({i}));
    }
    return fences;
  }

  // Is all of it known, or now seen, to be complete? Asks the device at most once a fence. What
  // can't be asked about now, of the whole context, is not.
  Result<bool> complete(const FenceSet& fences);
  // An error counts as no.
  bool is_seen_complete(const FenceSet& fences) {
    const Result<bool> over = complete(fences);
    return over && *over;
  }
  // The same, and nothing is remembered of it: for questions whose answer must not change where
  // memory is placed later, which is a function of the program, and not of the device's speed.
  Result<bool> looks_complete(const FenceSet& fences);
  // Blocks the calling thread until all of it is. No lock of Weir's is held while it blocks.
  Status host_wait(const FenceSet& fences);

  // Broken invariants, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;

  // How many retired streams keep their last event without anybody asking whether it is complete.
  // Placement looks at what is known complete, and must not depend on how fast the GPU is: the work
  // of a stream that was retired so long ago is done, on a slow machine as on a fast one.
  static constexpr std::size_t kRetiredKept = 64;
  // Spare events that drop_old_events() leaves, for the work that begins anew.
  static constexpr std::size_t kSpareKept = 16;

  // Written under the lock, read without it.
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

  struct Timeline {
    TimelineId id;  // never changes, nor does the next
    Stream stream;
    SharedSequence point{Sequence{1}};     // of the next event; when retired, of the last
    SharedSequence complete{Sequence{0}};  // the host knows work up to here to be done
    // The rest is guarded by the lock.
    VectorClock clock;  // what it has waited for; nothing once it is retired and complete
    RecordedEvents events;
    bool clock_moved = false;      // since an event was recorded
    std::uint32_t host_waits = 0;  // threads that wait for the last event of a retired stream
    bool retired = false;
    bool listed = false;  // in recorded_

    // The latest sequence that an event of it has, or would have, had its record not failed.
    Sequence latest() const { return {point.load().value - (retired ? 0 : 1)}; }
    bool is_complete(Sequence sequence) const { return sequence <= complete.load(); }
  };

  struct Borrowed {
    EventHandle event;
    Sequence sequence;
    bool own = false;
    bool needed = true;
  };
  Result<Borrowed> borrow_event(Fence fence) WEIR_EXCLUDES(mutex_);
  void give_back(TimelineId timeline, const Borrowed& borrowed) WEIR_REQUIRES(mutex_);

  Timeline& at(TimelineId timeline) WEIR_REQUIRES(mutex_) { return timelines_[timeline.value]; }
  const Timeline& at(TimelineId timeline) const WEIR_REQUIRES(mutex_) {
    return timelines_[timeline.value];
  }
  TimelineId find_or_add(Stream stream) WEIR_EXCLUDES(mutex_);
  bool is_complete(Fence fence) const {
    return timelines_[fence.timeline.value].is_complete(fence.sequence);
  }
  // Was there need to?
  Result<bool> wait(Timeline& waiter, Timeline& other, Fence fence) WEIR_REQUIRES(mutex_);
  Result<bool> wait(TimelineId waiter, Fence fence) WEIR_EXCLUDES(mutex_);
  Result<bool> ask(const FenceSet& fences, bool remember) WEIR_EXCLUDES(mutex_);
  // The earliest event that covers `sequence`, recorded now if there is none; null where `status`
  // then says why not. (A Result around a pointer would cost more than the rest of the work.)
  const Recorded* covering(Timeline& timeline, Sequence sequence, Status& status)
      WEIR_REQUIRES(mutex_);
  const Recorded* record_event(Timeline& timeline, Status& status) WEIR_REQUIRES(mutex_);
  Status record_on(Timeline& timeline, EventHandle event) WEIR_REQUIRES(mutex_);
  Status record_beside_captures(Stream stream, EventHandle event) WEIR_REQUIRES(mutex_);
  Status record_context(Timeline& context, EventHandle event) WEIR_REQUIRES(mutex_);
  Status not_captured(Stream stream);
  bool waits_by_context(Fence fence, const Error& error) const;
  Status host_wait_for_context(Fence fence) WEIR_EXCLUDES(mutex_);
  void note_host_wait(Fence fence, Nanoseconds start);
  void note_stream_wait(TimelineId waiter, Fence fence, HeapFold* heap);
  Status have_spare_event() WEIR_REQUIRES(mutex_);
  EventHandle take_spare_event() WEIR_REQUIRES(mutex_);
  void keep_last_event(Timeline& timeline) WEIR_REQUIRES(mutex_);
  void destroy_spare_events(std::size_t keep) WEIR_REQUIRES(mutex_);
  void mark_complete(TimelineId timeline, Sequence sequence) WEIR_REQUIRES(mutex_);
  void ask_about_retired() WEIR_REQUIRES(mutex_);
  void validate(TimelineId timeline, std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);

  Device& device_;
  Observer& observer_;
  OpenCaptures& captures_;
  const Trust trust_;
  TimelineId context_;          // under Trust::context
  const std::uint64_t serial_;  // of this object, in the process

  mutable Mutex mutex_;
  StableVector<Timeline> timelines_;  // added to under the lock
  std::unordered_map<std::uint64_t, TimelineId> by_stream_ WEIR_GUARDED_BY(mutex_);
  std::vector<EventHandle> spare_events_ WEIR_GUARDED_BY(mutex_);
  std::vector<VectorClock::Entry> joined_ WEIR_GUARDED_BY(mutex_);  // for VectorClock::join()
  std::vector<TimelineId> retired_ WEIR_GUARDED_BY(mutex_);  // oldest first; not seen complete
  // Those that have events, among them: what each event of the whole context looks through.
  std::vector<Timeline*> recorded_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
