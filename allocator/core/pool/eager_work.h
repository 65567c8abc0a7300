// SPDX-License-Identifier: Apache-2.0
// Eager work that may still use free memory of a graph pool: a capture begins, and a graph is
// launched, after it. Under Trust::context the program gives that order, and nothing is noted.
//
// Threads: none of its own; the graph pool's lock guards it.
#pragma once

#include <vector>

#include "core/heap/stream_heap.h"
#include "core/time/fence_set.h"
#include "core/time/timelines.h"

namespace weir {

class EagerWork {
 public:
  // `timelines`: the pool's; must outlive this.
  explicit EagerWork(Timelines& timelines) : timelines_(timelines) {}

  // Work so far on the stream uses memory that will be free.
  void note(TimelineId user);
  // record_stream() named this user: its work may use any block that becomes free.
  void note_user(TimelineId user);
  // The block is about to be free: its stream and the users may use it still.
  void note_free(StreamHeap& heap, Address block);
  // Covers all that the same streams did up to now.
  void renew();

  const FenceSet& fences() const { return fences_; }
  // Is it done, but for what can't be asked about, as its stream is captured just now? The capture
  // that asks won't have that memory. Errors: device.
  Result<bool> is_done() const;
  // The host waits for `work`, but for what can't be waited for. Errors: device.
  static Status wait_for(Timelines& timelines, const FenceSet& work);

 private:
  Timelines& timelines_;
  FenceSet fences_;
  std::vector<TimelineId> users_;
};

}  // namespace weir
