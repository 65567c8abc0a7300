// SPDX-License-Identifier: Apache-2.0
#include "core/pool/pool_events.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

Error no_event(EventHandle event) {
  return {ErrorCode::device, "no event " + std::to_string(event.value)};
}

}  // namespace

void PoolEvents::begin() {
  const MutexLock lock(mutex_);
  capturing_ = true;
  ++capture_;
}

void PoolEvents::end() {
  const MutexLock lock(mutex_);
  capturing_ = false;
  pasts_.clear();
}

Result<EventHandle> PoolEvents::create_event() {
  const MutexLock lock(mutex_);
  events_.try_emplace(++last_event_);
  return EventHandle{last_event_};
}

Status PoolEvents::destroy_event(EventHandle event) {
  const MutexLock lock(mutex_);
  const auto known = events_.find(event.value);
  if (known == events_.end()) return no_event(event);
  const EventHandle eager = known->second.eager;
  if (eager.value != 0) {
    if (Status gone = device_.destroy_event(eager); !gone) {
      if (others_ == nullptr) return gone;
      others_->take_over(eager);
    }
  }
  events_.erase(known);
  if (events_.empty()) events_ = {};  // with room for the most that there ever were
  return {};
}

Status PoolEvents::record(EventHandle event, Stream stream) {
  const MutexLock lock(mutex_);
  const auto known = events_.find(event.value);
  if (known == events_.end()) return no_event(event);
  Event& mine = known->second;
  if (!stream.is_in_capture()) {
    if (Status made = have_eager(mine); !made) return made;
    Status recorded =
        stream.is_all() ? device_.record_context(mine.eager) : device_.record(mine.eager, stream);
    if (!recorded) return recorded;
    mine.is_captured = false;
    return {};
  }
  std::vector<GraphNode> nodes;
  if (capturing_) {
    Result<std::vector<GraphNode>> tips = device_.capture_tips(stream.outside_capture());
    if (!tips) return std::move(tips).error();
    nodes = *std::move(tips);
  }
  mine.is_captured = true;
  mine.capture = capture_;
  mine.nodes = std::move(nodes);
  return {};
}

Status PoolEvents::have_eager(Event& event) {
  if (event.eager.value != 0) return {};
  Result<EventHandle> eager = device_.create_event();
  if (!eager) return std::move(eager).error();
  event.eager = *eager;
  return {};
}

Status PoolEvents::wait(Stream stream, EventHandle event) {
  const MutexLock lock(mutex_);
  const auto known = events_.find(event.value);
  if (known == events_.end()) return no_event(event);
  const Event& other = known->second;
  if (other.is_captured) {
    if (is_past(other)) return {};
    if (stream.is_in_capture()) return wait_in_capture(stream.outside_capture(), other);
    return Error(ErrorCode::capture, "stream " + std::to_string(stream.id) +
                                         " is not being captured, and can't wait for work that is: "
                                         "free the block after the capture has ended");
  }
  if (other.eager.value == 0) return {};  // never recorded
  if (!stream.is_in_capture()) return device_.wait(stream, other.eager);
  return Error(ErrorCode::capture,
               "stream " + std::to_string(stream.outside_capture().id) +
                   " is being captured, and can't wait for work that is not: fence before the "
                   "capture begins");
}

Status PoolEvents::wait_in_capture(Stream stream, const Event& event) {
  Result<std::vector<GraphNode>> missing = not_reached(stream, event.nodes);
  if (!missing) return std::move(missing).error();
  if (missing->empty()) return {};
  return device_.add_capture_dependencies(stream, *missing);
}

// Those of `nodes` that the stream's next node would not come after as it is.
Result<std::vector<GraphNode>> PoolEvents::not_reached(Stream stream,
                                                       const std::vector<GraphNode>& nodes) {
  Past& past = pasts_[stream.id];
  const auto known = [&](GraphNode node) { return past.contains(node); };
  if (!std::all_of(nodes.begin(), nodes.end(), known)) {
    Result<std::vector<GraphNode>> tips = device_.capture_tips(stream);
    if (!tips) return std::move(tips).error();
    if (Status walked = walk_back(past, *std::move(tips)); !walked) {
      return std::move(walked).error();
    }
  }
  std::vector<GraphNode> missing;
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(missing),
               [&](GraphNode node) { return !known(node); });
  return missing;
}

// Adds to `past` what `from` comes after. Each node is looked at once a stream and capture: what is
// past stays so.
Status PoolEvents::walk_back(Past& past, std::vector<GraphNode> from) {
  while (!from.empty()) {
    const GraphNode node = from.back();
    from.pop_back();
    if (!past.insert(node)) continue;
    Result<std::vector<GraphNode>> before = device_.node_dependencies(node);
    // `past` holds only nodes whose own past it holds, or will once `from` is done.
    if (!before) return past.clear(), std::move(before).error();
    from.insert(from.end(), before->begin(), before->end());
  }
  return {};
}

Result<bool> PoolEvents::query(EventHandle event) {
  const MutexLock lock(mutex_);
  const auto known = events_.find(event.value);
  if (known == events_.end()) return no_event(event);
  if (known->second.is_captured) return is_past(known->second);
  if (known->second.eager.value == 0) return true;
  return device_.query(known->second.eager);
}

Status PoolEvents::synchronize(EventHandle event) {
  EventHandle eager;
  {
    const MutexLock lock(mutex_);
    const auto known = events_.find(event.value);
    if (known == events_.end()) return no_event(event);
    if (known->second.is_captured) {
      if (is_past(known->second)) return {};
      return Error(ErrorCode::capture, "the host can't wait for work that is being captured");
    }
    eager = known->second.eager;
  }
  return eager.value == 0 ? Status{} : device_.synchronize(eager);
}

}  // namespace weir
