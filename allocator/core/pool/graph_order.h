// SPDX-License-Identifier: Apache-2.0
// In which order eager work and the graphs of a pool use its memory.
//
// Eager work may still use memory that is free: a capture begins, and a graph is launched, after
// it. Under Trust::context the program gives that order, and no eager work is noted.
//
// What graphs use the pool keeps until they are gone, and their launches done. Of graphs that Weir
// launches it knows the streams; under Trust::told it watches others (docs/decisions.md, 017).
//
// Threads: none of its own; the graph pool's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/heap/stream_heap.h"
#include "core/pool/pool.h"
#include "core/time/fence_set.h"
#include "weir/device.h"

namespace weir {

class GraphOrder {
 public:
  // `eager`: the device heap's own pool. All must outlive this. `polls`: as Timelines has it.
  GraphOrder(CaptureCalls& device, Pool& pool, Pool& eager, Polls polls)
      : device_(device), pool_(pool), eager_(eager), polls_(polls == Polls::yes) {}

  // --- Eager work.

  // Work so far on the stream uses memory that will be free.
  void note_eager(TimelineId user);
  // record_stream() named this user: its work may use any block that becomes free.
  void note_user(TimelineId user);
  // The block is about to be free: its stream and the users may use it still.
  void note_free(StreamHeap& heap, Address block);
  // From here on eager_work() covers all that the same streams did up to now.
  void renew();
  const FenceSet& eager_work() const { return eager_work_; }
  // Is it done, but for what can't be asked about, as its stream is captured just now? The capture
  // that asks won't have that memory. Errors: device.
  Result<bool> is_eager_work_done() const;
  // The host waits for `work`, but for what can't be waited for. Errors: device.
  static Status wait_for(Timelines& timelines, const FenceSet& work);

  // --- Graphs.

  std::uint64_t count() const { return count_; }
  // There are so many graphs more: 1, 0 or -1.
  void add(int graphs) { count_ += static_cast<std::uint64_t>(graphs); }
  // A graph was launched on the stream.
  void note_launch(Stream stream);
  // Launches of graphs, the last on each stream.
  const FenceSet& launches() const { return launches_; }

  // Watches the graph of the capture that the stream is in. Errors: device.
  Status watch(Stream stream);
  // There is a graph that is to be watched and can't be, as its capture asked for no memory.
  void note_unwatched() { has_unwatched_ = true; }

  // The last graph went, and its launches may be running: what only graphs kept is kept still.
  void begin_to_linger();
  void end_lingering() { lingers_ = false; }
  // Does it? `hopes`: and has the host not waited in vain for the driver to say that they are done?
  bool lingers(bool hopes = false) const { return lingers_ && !(hopes && waited_in_vain_); }
  // The host did wait in vain; `leaked`: the graphs are never destroyed, so they count as done.
  void note_lingers_on(bool leaked);
  // The host waits for the driver to say that graphs are done, until note_lingers_on(). With
  // Polls::no what it says counts only then: no time may decide when their memory is free.
  void begin_to_wait() { looks_ = true; }
  // Frees what only graphs kept, if they are done. If another thread holds the page heap's lock,
  // the call waits for that (`waits_for_lock`), or does nothing.
  void let_go(bool waits_for_lock);

 private:
  CaptureCalls& device_;
  Pool& pool_;
  Pool& eager_;
  const bool polls_;
  bool looks_ = polls_;
  FenceSet eager_work_;
  std::vector<TimelineId> users_;
  std::uint64_t count_ = 0;
  bool lingers_ = false;
  bool waited_in_vain_ = false;  // since it lingers
  bool has_unwatched_ = false;
  FenceSet launches_;
  // What each watched graph holds until it and its launches are gone.
  std::vector<std::weak_ptr<void>> watched_;
};

}  // namespace weir
