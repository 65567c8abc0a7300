// SPDX-License-Identifier: Apache-2.0
#include "core/pool/eager_work.h"

#include <algorithm>

namespace weir {

void EagerWork::note(TimelineId user) {
  if (timelines_.trust() == Trust::told) fences_.join(timelines_.now(user));
}

void EagerWork::note_user(TimelineId user) {
  if (std::find(users_.begin(), users_.end(), user) == users_.end()) users_.push_back(user);
}

void EagerWork::note_free(StreamHeap& heap, Address block) {
  if (timelines_.trust() != Trust::told) return;
  const LiveBlock live = heap.live(block);
  if (!live) return;
  note(timelines_.of(live.stream()));
  for (const TimelineId user : users_) note(user);
}

void EagerWork::renew() {
  for (const Fence fence : FenceSet(fences_)) fences_.join(timelines_.now(fence.timeline));
}

Result<bool> EagerWork::is_done() const {
  for (const Fence fence : fences_) {
    const Result<bool> done = timelines_.complete(fence);
    if (!done && done.error().code() != ErrorCode::capture) return done.error();
    if (done && !*done) return false;
  }
  return true;
}

Status EagerWork::wait_for(Timelines& timelines, const FenceSet& work) {
  for (const Fence fence : work) {
    // What is seen to be done need not be waited for, on a stream that is captured just now.
    const Result<bool> done = timelines.complete(fence);
    if (done && *done) continue;
    Status waited = done ? timelines.host_wait(FenceSet(fence)) : Status(done.error());
    if (!waited && waited.error().code() != ErrorCode::capture) return waited;
  }
  return {};
}

}  // namespace weir
