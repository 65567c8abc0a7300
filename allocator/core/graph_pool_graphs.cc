// How long a pool keeps what its graphs use: until they are gone, and their launches done. Of those
// that Weir launches it knows the streams; the others it watches (docs/decisions/017).
#include <algorithm>
#include <memory>
#include <utility>

#include "core/graph_pool.h"

namespace weir {

// A graph that uses no memory of its capture's needs no watch.
Status PoolHeap::watch(Stream captured) {
  const auto held = std::make_shared<char>();
  if (Status retained = home_.device.retain(captured, held); !retained) return retained;
  to_watch_ = false;
  std::erase_if(watched_, [](const auto& graph) { return graph.expired(); });
  watched_.push_back(held);
  return {};
}

// The last graph is gone, and what was launched of it done: its pages may go.
bool PoolHeap::is_done_lingering() {
  std::erase_if(watched_, [](const auto& graph) { return graph.expired(); });
  return lingers_ && watched_.empty();
}

void PoolHeap::stop_lingering() {
  const MutexLock lock(mutex_);
  if (lingers_ && !capturing_) watched_.clear();
}

bool PoolHeap::lingers() const {
  const MutexLock lock(mutex_);
  return lingers_;
}

Status PoolHeap::wait_for_eager_work(Stream stream) {
  const MutexLock lock(mutex_);
  Result<std::uint32_t> waited = timelines_.wait(timelines_.of(stream), eager_);
  if (!waited) return std::move(waited).error();
  return {};
}

void PoolHeap::note_launch(Stream stream) {
  const MutexLock lock(mutex_);
  launches_.join(timelines_.now(timelines_.of(stream)));
}

void PoolHeap::release_graph() {
  const MutexLock lock(mutex_);
  if (graphs_ > 0) --graphs_;
  if (graphs_ > 0 || capturing_) return;
  lingers_ = true;
  (void)give_back_pages_locked();
}

}  // namespace weir
