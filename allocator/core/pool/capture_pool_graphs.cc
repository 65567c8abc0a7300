// SPDX-License-Identifier: Apache-2.0
// How long a pool keeps what its graphs use: until they are gone, and their launches done. Of those
// that Weir launches it knows the streams; the others it watches (docs/decisions/017).
#include <algorithm>
#include <memory>
#include <utility>

#include "core/pool/capture_pool.h"

namespace weir {

// The graph holds an object of the pool's: while that is there, so is the graph, or a launch of it.
Status CapturePool::watch(Stream stream, std::uint64_t capture) {
  const auto held = std::make_shared<char>();
  Status retained = shared_.device.retain(stream, held);
  // A capture that is broken makes no graph.
  if (!retained && retained.error().code() != ErrorCode::capture) return retained;
  watched_capture_ = capture;
  std::erase_if(watched_, [](const auto& graph) { return graph.expired(); });
  watched_.push_back(held);
  return {};
}

bool CapturePool::is_watched() const {
  return std::any_of(watched_.begin(), watched_.end(),
                     [](const auto& graph) { return !graph.expired(); });
}

// The last graph went. One that nobody told of, and that is not watched, may run on any stream; and
// so may those that read what it wrote, where uses need not be told.
void CapturePool::begin_to_linger() {
  note_touched();
  lingers_ = true;
  waited_in_vain_ = false;
  if (!is_told()) {
    launches_.join(timelines().release_point(TimelineId{}));
    return;
  }
  if (!std::exchange(has_unwatched_, false)) return;
  for (const Stream stream : eager_->timelines().streams()) {
    launches_.join(timelines().now(timelines().of(stream)));
  }
  for_each_member([&](const Pool::Member& member) WEIR_REQUIRES(mutex_) {
    launches_.join(timelines().now(timelines().of(member.stream)));
  });
}

// The last graph is gone, and what was launched of it done: its pages may go.
bool CapturePool::is_done_lingering() const { return lingers_ && !is_watched(); }

bool CapturePool::lingers() const {
  const MutexLock lock(mutex_);
  return lingers_;
}

bool CapturePool::may_end_lingering() const {
  const MutexLock lock(mutex_);
  return lingers_ && !waited_in_vain_;
}

void CapturePool::note_lingers_on(bool leaked) {
  const MutexLock lock(mutex_);
  if (!lingers_ || capturing_) return;
  waited_in_vain_ = true;
  if (leaked) watched_.clear();
}

Status CapturePool::wait_for_eager_work(Stream stream) {
  const MutexLock lock(mutex_);
  return timelines().wait(timelines().of(stream), eager_work_);
}

void CapturePool::note_launch(Stream stream) {
  if (!is_told()) return;  // begin_to_linger() covers it
  const MutexLock lock(mutex_);
  note_touched();
  launches_.join(timelines().now(timelines().of(stream)));
}

void CapturePool::release_graph() {
  const MutexLock lock(mutex_);
  if (graphs_ > 0) --graphs_;
  if (graphs_ > 0 || capturing_) return;
  begin_to_linger();
  (void)give_back_pages_locked();
}

}  // namespace weir
