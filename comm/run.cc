// One way through: the caller's stream is waited for, NCCL is asked, the blocks are fenced.
#include <algorithm>
#include <utility>

#include "comm/captured_together.h"
#include "comm/comm_state.h"
#include "comm/digest.h"

namespace weir {
namespace {

// Sends and receives differ from rank to rank, by their nature: of them ranks compare nothing.
bool is_common(const Operation& operation) {
  return operation.kind != OperationKind::send && operation.kind != OperationKind::receive;
}

}  // namespace

Result<CommState::Queued> CommState::run(std::span<const Operation> group, Stream stream,
                                         std::span<const Point> after) {
  if (Status good = check(group); !good) return std::move(good).error();
  const std::lock_guard calls(calls_);
  Result<Entered> entered = enter(group.front(), stream, after);
  if (!entered) return std::move(entered).error();
  return leave(group, *entered, enqueue(group, entered->lane->stream));
}

Status CommState::check(std::span<const Operation> group) const {
  for (const Operation& operation : group) {
    if (Status good = operation.check(ranks, rank); !good) {
      return error(good.error().code(), good.error().message());
    }
  }
  return {};
}

Result<CaptureInfo> CommState::may_enter(const Operation& first, Stream stream,
                                         std::span<const Point> after) const {
  if (Status works = status(); !works) return std::move(works).error();
  Result<CaptureInfo> info = place.device.capture_info(stream);
  if (!info) return info.error();
  if (Status same = check_world(stream, info->id, after); !same) return std::move(same).error();
  if (info->status == CaptureInfo::Status::none) return info;
  const std::string what = first.describe(ranks) + " on stream " + std::to_string(stream.id) +
                           ", which is being captured";
  if (info->status == CaptureInfo::Status::invalidated) {
    return error(ErrorCode::capture, what + ": the capture was broken by an earlier call");
  }
  if (!prepared) {
    return error(ErrorCode::capture,
                 what +
                     ": it is not prepared, and connecting now would break the capture, which "
                     "is whole still: call prepare() on every rank before the capture begins");
  }
  return info;
}

Result<CommState::Entered> CommState::enter(const Operation& first, Stream stream,
                                            std::span<const Point> after) {
  const Result<CaptureInfo> info = may_enter(first, stream, after);
  if (!info) return info.error();
  return info->status == CaptureInfo::Status::none ? enter_eager(stream, after)
                                                   : enter_captured(stream, info->id, after);
}

Result<CommState::Queued> CommState::leave(std::span<const Operation> group, const Entered& entered,
                                           const Status& queued) {
  return entered.capture == 0 ? leave_eager(group, queued)
                              : leave_captured(group, *entered.lane, queued);
}

// `id`: of the capture that the stream is in; 0: none.
Status CommState::check_world(Stream stream, std::uint64_t id, std::span<const Point> after) const {
  for (const Point& point : after) {
    if (point.capture == id) continue;
    const auto say = [](std::uint64_t capture) {
      return capture == 0 ? std::string("in no capture") : "in capture " + std::to_string(capture);
    };
    return error(ErrorCode::capture, "stream " + std::to_string(stream.id) + " is " + say(id) +
                                         ", and may not wait for work that was queued " +
                                         say(point.capture));
  }
  return {};
}

Result<CommState::Point> CommState::take_point(Stream stream) {
  const std::lock_guard calls(calls_);
  const Result<CaptureInfo> info = place.device.capture_info(stream);
  if (!info) return info.error();
  if (info->status == CaptureInfo::Status::none) {
    const Result<Fence> fence = place.heap.take_fence({}, stream);
    if (!fence) return fence.error();
    return Point{.fence = *fence, .capture = 0, .event = {}};
  }
  if (info->status == CaptureInfo::Status::invalidated || !prepared) {
    return error(ErrorCode::capture,
                 "stream " + std::to_string(stream.id) + " is being captured, and " +
                     (prepared ? "the capture was broken by an earlier call"
                               : "it is not prepared: call prepare() on every rank before the "
                                 "capture begins"));
  }
  Lane* lane = lanes_.find(info->id);
  if (lane == nullptr) {
    Result<Lane*> joined = join_capture(stream, info->id);
    if (!joined) return std::move(joined).error();
    lane = *joined;
  }
  Result<EventHandle> event = lanes_.event_of(*lane);
  if (!event) return std::move(event).error();
  if (Status recorded = place.device.record(*event, stream); !recorded) {
    return std::move(recorded).error();
  }
  return Point{.fence = {}, .capture = info->id, .event = *event};
}

Status CommState::wait(Stream stream, const Point& point) {
  const Result<CaptureInfo> info = place.device.capture_info(stream);
  if (!info) return info.error();
  const bool capturing = info->status != CaptureInfo::Status::none;
  const auto refused = [&](const std::string& why) {
    return error(ErrorCode::capture,
                 "stream " + std::to_string(stream.id) + " may not wait: " + why);
  };
  if (point.capture == 0) {
    if (!capturing) return place.heap.wait(stream, point.fence);
    return refused(
        "the work was eager, and the stream is being captured: wait before the capture "
        "begins");
  }
  if (point.lane.id != 0) {
    const Result<CaptureInfo> of_lane = place.device.capture_info(point.lane);
    if (!of_lane) return of_lane.error();
    if (of_lane->id != point.capture) {
      return refused(
          "the capture that the work is part of is over: order other work after the "
          "launch of its graph");
    }
  }
  if (capturing && info->id != point.capture) {
    return refused("it is being captured into another graph than the work");
  }
  return place.device.wait(stream, point.event);
}

Result<CommState::Entered> CommState::enter_eager(Stream stream, std::span<const Point> after) {
  Result<Lane*> lane = lanes_.eager();
  if (!lane) return std::move(lane).error();
  if (!has_lane_) {
    eager_ = (*lane)->stream;
    has_lane_.store(true, std::memory_order_release);
  }
  if (Status waits = place.heap.order(stream, eager_); !waits) return std::move(waits).error();
  for (const Point& point : after) {
    if (Status waits = place.heap.wait(eager_, point.fence); !waits)
      return std::move(waits).error();
  }
  return Entered{.lane = *lane, .capture = 0};
}

Result<CommState::Queued> CommState::leave_eager(std::span<const Operation> group,
                                                 const Status& queued) {
  const Status watched = watch_.queued(group, eager_);
  // Whatever came of it, a part of the group may run: the blocks are fenced.
  used_.clear();
  for (const Operation& operation : group) {
    if (operation.reads(ranks, rank) > 0_B) used_.push_back(operation.send);
    if (operation.writes(ranks, rank) > 0_B) used_.push_back(operation.receive);
  }
  const Result<Fence> done = place.heap.take_fence_around(used_, eager_);
  if (!queued || !watched || !done) {
    const Error& why = !queued ? queued.error() : !watched ? watched.error() : done.error();
    fail(why);
    if (done) fence_registered(group, *done);
    return status().error();
  }
  fence_registered(group, *done);
  return Queued{.fence = *done, .lane = eager_, .done = {}};
}

Result<CommState::Entered> CommState::enter_captured(Stream stream, std::uint64_t id,
                                                     std::span<const Point> after) {
  Result<Lane*> joined = join_capture(stream, id);
  if (!joined) return std::move(joined).error();
  for (const Point& point : after) {
    if (Status waits = place.device.wait((*joined)->stream, point.event); !waits) {
      return std::move(waits).error();
    }
  }
  return Entered{.lane = *joined, .capture = id};
}

Result<CommState::Queued> CommState::leave_captured(std::span<const Operation> group, Lane& lane,
                                                    const Status& queued) {
  keep_registered(group, lane);
  if (!queued) {
    fail(queued.error());
    return status().error();
  }
  for (const Operation& operation : group) {
    ++lane.operations;
    if (!is_common(operation)) continue;
    // Its size to the byte, which a description rounds.
    lane.digest = digest(operation.describe(ranks) + std::to_string(operation.count), lane.digest);
  }
  if (Status fenced = place.heap.fence(blocks_of(group), lane.stream); !fenced) {
    return error(fenced.error().code(), fenced.error().message());
  }
  Result<EventHandle> done = lanes_.event_of(lane);
  if (!done) return std::move(done).error();
  if (Status recorded = place.device.record(*done, lane.stream); !recorded) {
    return std::move(recorded).error();
  }
  return Queued{.fence = {}, .capture = lane.capture, .lane = lane.stream, .done = *done};
}

// The lane is part of the capture then, behind what `stream` holds.
Result<Lane*> CommState::join_capture(Stream stream, std::uint64_t id) {
  const bool is_new = lanes_.find(id) == nullptr;
  Result<Lane*> lane = lanes_.of_capture(id);
  if (!lane) return lane;
  if (is_new) {
    if (Status held = hold_until_graph_is_gone(stream, **lane); !held) {
      (*lane)->capture = 0;
      return error(held.error().code(), held.error().message());
    }
  }
  Result<EventHandle> ready = lanes_.event_of(**lane);
  if (!ready) return std::move(ready).error();
  if (Status ordered = order(stream, (*lane)->stream, *ready); !ordered) {
    return std::move(ordered).error();
  }
  return lane;
}

// The lane's capture makes the graph: the Graph of a CaptureScope, or, where the program ends the
// capture by itself, one of the driver's.
Status CommState::hold_until_graph_is_gone(Stream stream, Lane& lane) {
  struct OfGraph {
    std::shared_ptr<CommState> state;
    std::shared_ptr<CapturedPart> part;
  };
  const auto part = std::make_shared<CapturedPart>(
      shared_from_this(), CapturedTogether::of_capture(place.heap, lane.capture));
  const auto kept = std::make_shared<OfGraph>(OfGraph{shared_from_this(), part});
  const Result<bool> scoped = place.heap.attach(stream, {lane.stream, kept});
  if (!scoped) return scoped.error();
  if (!*scoped) {
    if (Status retained = place.device.retain(stream, part); !retained) return retained;
  }
  lane.graph = part;
  return {};
}

Status CommState::order(Stream earlier, Stream later, EventHandle event) {
  if (Status recorded = place.device.record(event, earlier); !recorded) return recorded;
  return place.device.wait(later, event);
}

Status CommState::enqueue(std::span<const Operation> group, Stream lane) {
  const auto nccl_call = lock_nccl();
  if (Status works = status(); !works) return works;  // it may have ended since the caller asked
  if (group.size() == 1) return place.nccl.enqueue(handle, group.front(), lane);
  if (Status started = place.nccl.group_start(); !started) return started;
  Status first = note(group, lane);
  Status ended = place.nccl.group_end();  // a group that was begun is ended, whatever happened
  return first ? std::move(ended) : std::move(first);
}

Status CommState::note(std::span<const Operation> group, Stream lane) {
  for (const Operation& operation : group) {
    if (Status noted = place.nccl.enqueue(handle, operation, lane); !noted) return noted;
  }
  return {};
}

// Those of the heap, each once. Pointers may be into the middle of blocks.
std::vector<void*> CommState::blocks_of(std::span<const Operation> group) const {
  std::vector<void*> blocks;
  const auto add = [&](const void* pointer, Bytes bytes) {
    if (bytes == 0_B) return;
    const std::optional<BlockInfo> block = place.heap.find(pointer);
    if (!block) return;
    void* const start = block->address.pointer();
    if (std::find(blocks.begin(), blocks.end(), start) == blocks.end()) blocks.push_back(start);
  };
  for (const Operation& operation : group) {
    add(operation.send, operation.reads(ranks, rank));
    add(operation.receive, operation.writes(ranks, rank));
  }
  return blocks;
}

void CommState::fence_registered(std::span<const Operation> group, Fence done) const {
  if (!has_memories_.load(std::memory_order_acquire)) return;
  for (const std::shared_ptr<RegisteredMemory>& memory : memories()) {
    for (const Operation& operation : group) {
      memory->fence_use(operation.send, done);
      memory->fence_use(operation.receive, done);
    }
  }
}

void CommState::keep_registered(std::span<const Operation> group, const Lane& lane) const {
  for (const std::shared_ptr<RegisteredMemory>& memory : memories()) {
    for (const Operation& operation : group) {
      memory->keep_for(operation.send, lane.graph);
      memory->keep_for(operation.receive, lane.graph);
    }
  }
}

}  // namespace weir
