// How long a pool keeps what its graphs use: until they are gone, and their launches done. Of those
// that Weir launches it knows the streams; the others it watches (docs/decisions/017).
#include <algorithm>
#include <memory>
#include <utility>

#include "core/pool/graph_pool.h"

namespace weir {

// The graph holds an object of the pool's: while that is there, so is the graph, or a launch of it.
Status PoolHeap::watch(Stream stream, std::uint64_t capture) {
  const auto held = std::make_shared<char>();
  Status retained = home_.device.retain(stream, held);
  // A capture that is broken makes no graph.
  if (!retained && retained.error().code() != ErrorCode::capture) return retained;
  watched_capture_ = capture;
  std::erase_if(watched_, [](const auto& graph) { return graph.expired(); });
  watched_.push_back(held);
  return {};
}

bool PoolHeap::is_watched() const {
  return std::any_of(watched_.begin(), watched_.end(),
                     [](const auto& graph) { return !graph.expired(); });
}

// The last graph went. One that nobody told of, and that is not watched, may run on any stream; and
// so may those that read what it wrote, where uses need not be told.
void PoolHeap::begin_to_linger() {
  settled_ = false;
  lingers_ = true;
  waited_in_vain_ = false;
  if (!is_told()) {
    launches_.join(timelines_.release_point(TimelineId{}));
    return;
  }
  if (!std::exchange(has_unwatched_, false)) return;
  for (const Stream stream : home_.timelines.streams()) {
    launches_.join(timelines_.now(timelines_.of(stream)));
  }
  for (const auto& [id, member] : heaps_) {
    launches_.join(timelines_.now(timelines_.of(member.stream)));
  }
}

// The last graph is gone, and what was launched of it done: its pages may go.
bool PoolHeap::is_done_lingering() const { return lingers_ && !is_watched(); }

bool PoolHeap::lingers() const {
  const MutexLock lock(mutex_);
  return lingers_;
}

bool PoolHeap::may_end_lingering() const {
  const MutexLock lock(mutex_);
  return lingers_ && !waited_in_vain_;
}

void PoolHeap::note_lingers_on(bool leaked) {
  const MutexLock lock(mutex_);
  if (!lingers_ || capturing_) return;
  waited_in_vain_ = true;
  if (leaked) watched_.clear();
}

Status PoolHeap::wait_for_eager_work(Stream stream) {
  const MutexLock lock(mutex_);
  return timelines_.wait_for(timelines_.of(stream), eager_);
}

void PoolHeap::note_launch(Stream stream) {
  if (!is_told()) return;  // begin_to_linger() covers it
  const MutexLock lock(mutex_);
  settled_ = false;
  launches_.join(timelines_.now(timelines_.of(stream)));
}

void PoolHeap::release_graph() {
  const MutexLock lock(mutex_);
  if (graphs_ > 0) --graphs_;
  if (graphs_ > 0 || capturing_) return;
  begin_to_linger();
  (void)give_back_pages_locked();
}

}  // namespace weir
