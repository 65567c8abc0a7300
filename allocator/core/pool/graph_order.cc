// SPDX-License-Identifier: Apache-2.0
#include "core/pool/graph_order.h"

#include <algorithm>
#include <utility>

namespace weir {

void GraphOrder::note_eager(TimelineId user) {
  if (pool_.timelines().trust() == Trust::told) eager_work_.join(pool_.timelines().now(user));
}

void GraphOrder::note_user(TimelineId user) {
  if (std::find(users_.begin(), users_.end(), user) == users_.end()) users_.push_back(user);
}

void GraphOrder::note_free(StreamHeap& heap, Address block) {
  if (pool_.timelines().trust() != Trust::told) return;
  const LiveBlock live = heap.live(block);
  if (!live) return;
  note_eager(pool_.timelines().of(live.stream()));
  for (const TimelineId user : users_) note_eager(user);
}

void GraphOrder::renew() {
  for (const Fence fence : FenceSet(eager_work_))
    eager_work_.join(pool_.timelines().now(fence.timeline));
}

Result<bool> GraphOrder::is_eager_work_done() const {
  for (const Fence fence : eager_work_) {
    const Result<bool> done = pool_.timelines().complete(fence);
    if (!done && done.error().code() != ErrorCode::capture) return done.error();
    if (!done || *done) continue;
    const bool captured = !pool_.timelines().retired(pool_.timelines().stream(fence.timeline)) &&
                          !pool_.timelines().not_captured(fence.timeline);
    if (!captured) return false;
  }
  return true;
}

Status GraphOrder::wait_for(Timelines& timelines, const FenceSet& work) {
  for (const Fence fence : work) {
    // What is seen to be done need not be waited for, on a stream that is captured just now.
    const Result<bool> done = timelines.complete(fence);
    if (done && *done) continue;
    Status waited = done ? timelines.host_wait(FenceSet(fence)) : Status(done.error());
    if (!waited && waited.error().code() != ErrorCode::capture) return waited;
  }
  return {};
}

void GraphOrder::note_launch(Stream stream) {
  Timelines& timelines = pool_.timelines();
  launches_.join(timelines.now(timelines.of(stream)));
}

// The graph holds an object of the pool's: while that is there, so is the graph, or a launch of it.
Status GraphOrder::watch(Stream stream) {
  const auto held = std::make_shared<char>();
  Status retained = device_.retain(stream, held);
  // A capture that is broken makes no graph.
  if (!retained && retained.error().code() != ErrorCode::capture) return retained;
  std::erase_if(watched_, [](const auto& graph) { return graph.expired(); });
  watched_.push_back(held);
  return {};
}

// A graph that nobody told of, and that is not watched, may have run on any stream; and so may
// those that read what it wrote, where uses need not be told.
void GraphOrder::begin_to_linger() {
  lingers_ = true;
  waited_in_vain_ = false;
  Timelines& timelines = pool_.timelines();
  if (timelines.trust() == Trust::context) {
    launches_.join(timelines.release_point(TimelineId{}));
  } else if (std::exchange(has_unwatched_, false)) {
    for (const Stream stream : eager_.timelines().streams()) note_launch(stream);
    pool_.for_each_member([&](const Pool::Member& member) { note_launch(member.stream); });
  }
}

void GraphOrder::note_lingers_on(bool leaked) {
  looks_ = polls_;
  if (!lingers_) return;
  waited_in_vain_ = true;
  if (leaked) watched_.clear();
}

void GraphOrder::let_go(bool waits_for_lock) {
  const auto is_there = [](const auto& graph) { return !graph.expired(); };
  if (!looks_ && !watched_.empty()) return;
  if (!lingers_ || std::any_of(watched_.begin(), watched_.end(), is_there)) return;
  PageHeap& pages = pool_.pages();
  if (const auto idle = waits_for_lock ? pages.idle() : pages.idle(std::try_to_lock)) {
    idle->let_go(launches_);
    lingers_ = false;
  }
}

}  // namespace weir
