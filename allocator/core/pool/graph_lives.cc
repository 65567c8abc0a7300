// SPDX-License-Identifier: Apache-2.0
#include "core/pool/graph_lives.h"

#include <algorithm>
#include <utility>

namespace weir {

void GraphLives::note_launch(Stream stream) {
  Timelines& timelines = pool_.timelines();
  launches_.join(timelines.now(timelines.of(stream)));
}

// The graph holds an object of the pool's: while that is there, so is the graph, or a launch of it.
Status GraphLives::watch(Stream stream) {
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
void GraphLives::begin_to_linger() {
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

void GraphLives::note_lingers_on(bool leaked) {
  if (!lingers_) return;
  waited_in_vain_ = true;
  if (leaked) watched_.clear();
}

void GraphLives::let_go(bool waits_for_lock) {
  const auto is_there = [](const auto& graph) { return !graph.expired(); };
  if (!lingers_ || std::any_of(watched_.begin(), watched_.end(), is_there)) return;
  PageHeap& pages = pool_.pages();
  if (const auto idle = waits_for_lock ? pages.idle() : pages.idle(std::try_to_lock)) {
    idle->let_go(launches_);
    lingers_ = false;
  }
}

}  // namespace weir
