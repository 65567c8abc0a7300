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
// waits by Device::synchronize_context(). Who waits for such an event is past every event that was
// recorded before it, of any stream; which those are is looked up when somebody asks.
//
// Threads: self-synchronised, by a lock that is taken after those of heaps and pages.
// (OpenCaptures', the observer's and the device's come after it.) Points, streams, and what the
// host knows to be complete are read without it. Record, wait and query are driver calls made
// under it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/stable_vector.h"
#include "core/time/event_source.h"
#include "core/time/fence_set.h"
#include "core/time/open_captures.h"
#include "core/time/timeline.h"
#include "observe/observer.h"
#include "weir/device.h"
#include "weir/heap_types.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// May the device be asked whether work is done? Its answer depends on when it is asked, and so then
// does where memory is placed.
enum class Polls { yes, no };

class Timelines {
 public:
  // `captures` must outlive this.
  Timelines(EventCalls& device, Observer& observer, OpenCaptures& captures,
            Trust trust = Trust::told, Polls polls = Polls::yes);
  ~Timelines();

  // The timeline of `stream`, new if need be.
  TimelineId of(Stream stream);
  Stream stream(TimelineId timeline) const { return timelines_[timeline.value].stream; }
  bool has_met(Stream stream) const;

  // All work queued on the stream so far, without a call of the driver. (Work queued later, before
  // somebody waits, may be waited for as well.)
  Fence now(TimelineId timeline) const {
    return {timeline, timelines_[timeline.value].point.load()};
  }
  // What must be waited for before free memory of the stream's serves anybody else: its own work so
  // far, where every other use was told; all work so far of all streams, where it need not be.
  Fence release_point(TimelineId timeline) const {
    return now(trust_ == Trust::context ? context_ : timeline);
  }
  Trust trust() const { return trust_; }
  // Of the whole context, under Trust::context.
  std::optional<TimelineId> context() const {
    return trust_ == Trust::context ? std::optional(context_) : std::nullopt;
  }
  // Like now(), but records an event at once: covers exactly the work so far, and stays valid if
  // the stream is destroyed. Errors: capture (the stream is being captured; of Stream::all(), any
  // is); device.
  Result<Fence> record(TimelineId timeline);
  // Takes the last fence of a stream that is about to be destroyed. Nothing is recorded on it
  // again. Its event is kept until it is seen complete: by complete() or host_wait(); or, once
  // kRetiredKept more streams were retired, in retire(), which asks the device about a few.
  Status retire(TimelineId timeline);
  // False of a stream that was never met here.
  bool retired(Stream stream) const;

  // Records what was not recorded yet, wherever that can be done: on every stream, or, where uses
  // need not be told, of the whole context. Somebody may have to wait for it when it no longer can.
  // Returns whether all was recorded; then there is no need to again until more points are taken.
  bool settle();

  // For who has no memory left. Of each timeline all events go but the last, which covers what they
  // did; and of spare ones all but a few. `complete`: these few go too, and the last where the
  // device says that it is complete. (It is asked: where there is no memory, its answer can't
  // change where memory is placed.)
  void drop_events(bool complete);
  // An event of somebody else's that nobody needs any more.
  void take_over(EventHandle event) {
    const MutexLock lock(mutex_);
    events_.give_back(event);
  }

  // Errors: capture (somebody captures the stream, which is not a pool's own capture); device.
  Status not_captured(TimelineId timeline) { return captures_.not_captured(stream(timeline)); }

  // Is `waiter` known to run after the fences? It always runs after its own.
  bool satisfied(const FenceSet& fences, TimelineId waiter) const;
  // Up to which point of `of` is `waiter` known to run after it?
  Sequence past(TimelineId waiter, TimelineId of) const;
  // Rises whenever past() may come to say more than it did, of any two. Takes no lock.
  std::uint64_t learnt() const { return learnt_.load(std::memory_order_acquire); }
  // Makes work queued on `waiter` from now on run after the fences, on the GPU. Fences that it is
  // known to be past cost nothing. Each wait that is made is an event (stream_wait), counted by
  // `heap`, whose lock the caller holds, or by no heap, and is added to `made`, if given. On an
  // error the waits made so far stand, and are remembered.
  Status wait(TimelineId waiter, const FenceSet& fences, HeapFold* heap = nullptr,
              FenceSet* made = nullptr);

  // `waiter` runs after the fence, as the program has made it wait, by calls of its own.
  void note_waited(TimelineId waiter, Fence fence);

  // Those that were not retired, in the order in which they were met; without the whole context.
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
  //   remembers: what was seen is known from now on.
  //   looks: nothing is remembered: for questions whose answer must not change where memory is
  //     placed later, which is a function of the program, and not of the device's speed.
  // With Polls::no the device is asked about what was captured alone, whose end the program
  // decides.
  enum class Asks { remembers, looks };
  Result<bool> complete(const FenceSet& fences, Asks asks = Asks::remembers);
  // The same of work that is to be over before memory is unmapped. With Polls::no the first call
  // records what is to be waited for, and a later one waits.
  Result<bool> over_or_wait(const FenceSet& fences, Asks asks);
  // An error counts as no.
  bool is_seen_complete(const FenceSet& fences) {
    const Result<bool> over = complete(fences);
    return over && *over;
  }
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
  // Spare events that drop_events() leaves, for the work that begins anew.
  static constexpr std::size_t kSpareKept = 16;

  bool is_complete(Fence fence) const {
    return timelines_[fence.timeline.value].is_complete(fence.sequence);
  }
  Sequence past(const Timeline& waiter, const Timeline& of) const WEIR_REQUIRES(mutex_);
  // The earliest event that covers `sequence`, recorded now if there is none; null where `status`
  // then says why not. (A Result around a pointer would cost more than the rest of the work.)
  const Recorded* covering(Timeline& timeline, Sequence sequence, Status& status)
      WEIR_REQUIRES(mutex_);
  // `all`: for all work so far, and not only up to the fence.
  Status host_wait(Fence fence, bool all = true) WEIR_EXCLUDES(mutex_);
  void mark_complete(Timeline& timeline, Sequence sequence) WEIR_REQUIRES(mutex_);
  void learn() WEIR_REQUIRES(mutex_) { learnt_.fetch_add(1, std::memory_order_release); }
  void ask_about_last_event(Timeline& timeline) WEIR_REQUIRES(mutex_);

  EventCalls& device_;
  Observer& observer_;
  OpenCaptures& captures_;
  const Trust trust_;
  const Polls polls_;
  TimelineId context_;  // under Trust::context

  std::atomic<std::uint64_t> learnt_{0};
  mutable Mutex mutex_;
  StableVector<Timeline> timelines_;  // added to under the lock
  std::unordered_map<std::uint64_t, TimelineId> by_stream_ WEIR_GUARDED_BY(mutex_);
  EventSource events_ WEIR_GUARDED_BY(mutex_);
  std::vector<TimelineId> retired_ WEIR_GUARDED_BY(mutex_);  // oldest first; not seen complete
};

}  // namespace weir
