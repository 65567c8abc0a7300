// SPDX-License-Identifier: Apache-2.0
// One way through: NCCL is asked on the caller's stream, or on one that waits for it; the blocks
// are fenced.
#include <algorithm>
#include <utility>

#include "comm/comm_state.h"
#include "comm/digest.h"

namespace weir {
namespace {

// Sends and receives differ from rank to rank, by their nature: of them ranks compare nothing.
bool is_common(const Operation& operation) {
  return operation.kind != OperationKind::send && operation.kind != OperationKind::receive;
}

}  // namespace

template <class Visit>
void CommState::visit_registered(std::span<const Operation> group, Visit visit) const {
  if (!has_memories_.load(std::memory_order_acquire)) return;  // no lock for each operation
  const std::lock_guard lock(memories_mutex_);
  for (const std::shared_ptr<RegisteredMemory>& memory : memories_) {
    for (const Operation& operation : group) {
      memory->with_block(operation.send, visit);
      memory->with_block(operation.receive, visit);
    }
  }
}

Result<CommState::Point> CommState::run(std::span<const Operation> group, Stream stream,
                                        bool overlap, std::span<const Point> after) {
  if (Status good = check(group); !good) return std::move(good).error();
  const std::lock_guard calls(calls_);
  Result<Entered> entered = enter(group.front(), stream, overlap, after);
  if (!entered) return std::move(entered).error();
  return leave(group, *entered, enqueue(group, entered->stream));
}

Status CommState::check(std::span<const Operation> group) const {
  for (const Operation& operation : group) {
    if (Status good = operation.check(ranks, rank); !good) {
      return error(good.error().code(), good.error().message());
    }
  }
  return {};
}

Result<CaptureInfo> CommState::may_use(Stream stream, const Operation* operation) const {
  Result<CaptureInfo> info = context.device.capture_info(stream);
  if (!info || info->status == CaptureInfo::Status::none) return info;
  const std::string what = (operation != nullptr ? operation->describe(ranks) + " on " : "") +
                           "stream " + std::to_string(stream.id) + ", which is being captured";
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

Result<CaptureInfo> CommState::may_enter(const Operation& first, Stream stream,
                                         std::span<const Point> after) const {
  if (Status works = usable(); !works) return std::move(works).error();
  Result<CaptureInfo> info = may_use(stream, &first);
  for (const Point& point : after) {
    if (!info || point.capture == info->id) continue;
    const auto say = [](std::uint64_t capture) {
      return capture == 0 ? std::string("in no capture") : "in capture " + std::to_string(capture);
    };
    return error(ErrorCode::capture,
                 "stream " + std::to_string(stream.id) + " is " + say(info->id) +
                     ", and may not wait for work that was queued " + say(point.capture));
  }
  return info;
}

Result<CommState::Entered> CommState::enter(const Operation& first, Stream stream, bool overlap,
                                            std::span<const Point> after) {
  const Result<CaptureInfo> info = may_enter(first, stream, after);
  if (!info) return info.error();
  Entered entered{.stream = stream, .overlap = overlap};
  if (info->status != CaptureInfo::Status::none) {
    const Result<CommStream*> joined = join_capture(stream, info->id);
    if (!joined) return joined.error();
    entered.captured = *joined;
  }
  if (overlap) {
    const Result<Stream> forked = fork(stream, entered.captured);
    if (!forked) return forked.error();
    entered.stream = *forked;
  }
  for (const Point& point : after) {
    if (Status waits = wait(entered.stream, point); !waits) return std::move(waits).error();
  }
  return entered;
}

Result<CommState::Point> CommState::leave(std::span<const Operation> group, const Entered& entered,
                                          const Status& queued) {
  return entered.captured == nullptr ? leave_eager(group, entered, queued)
                                     : leave_captured(group, entered, queued);
}

Result<CommState::Point> CommState::take_point(Stream stream) {
  const std::lock_guard calls(calls_);
  const Result<CaptureInfo> info = may_use(stream, nullptr);
  if (!info) return info.error();
  if (info->status == CaptureInfo::Status::none) {
    const Result<Fence> fence = context.heap.take_fence({}, stream);
    if (!fence) return fence.error();
    return Point{.fence = *fence};
  }
  const Result<CommStream*> joined = join_capture(stream, info->id);
  if (!joined) return joined.error();
  const Result<EventHandle> event = record_captured(**joined, stream);
  if (!event) return event.error();
  return Point{.capture = info->id, .event = *event};
}

Status CommState::wait(Stream stream, const Point& point) {
  const Result<CaptureInfo> info = context.device.capture_info(stream);
  if (!info) return info.error();
  const bool capturing = info->status != CaptureInfo::Status::none;
  const auto refused = [&](const std::string& why) {
    return error(ErrorCode::capture,
                 "stream " + std::to_string(stream.id) + " may not wait: " + why);
  };
  if (point.capture == 0 && capturing) {
    return refused(
        "the work was eager, and the stream is being captured: wait before the capture begins");
  }
  if (point.fence) return context.heap.wait(stream, *point.fence);
  // Where it is the caller's, an eager point's stream may be captured since.
  if (point.capture == 0) {
    const Result<CaptureInfo::Status> status = context.device.capture_status(point.stream);
    if (!status) return status.error();
    if (*status != CaptureInfo::Status::none) {
      return refused("stream " + std::to_string(point.stream.id) +
                     ", which has the work, is being captured: wait before the capture begins, or "
                     "after its end");
    }
  } else if (point.stream.id != 0) {
    const Result<CaptureInfo> its = context.device.capture_info(point.stream);
    if (!its) return its.error();
    if (its->id != point.capture) {
      return refused(
          "the capture that the work is part of is over: order other work after the launch of its "
          "graph");
    }
  }
  if (point.capture == 0) return context.heap.order(point.stream, stream);
  if (capturing && info->id != point.capture) {
    return refused("it is being captured into another graph than the work");
  }
  return context.device.wait(stream, point.event);
}

// Whatever came of it, a part of the group may run: what it uses is fenced.
Result<std::optional<Fence>> CommState::fence_used(std::span<const Operation> group,
                                                   const Entered& entered) {
  used_.clear();
  for (const Operation& operation : group) {
    if (operation.reads(ranks, rank) > 0_B) used_.push_back(operation.send);
    if (operation.writes(ranks, rank) > 0_B) used_.push_back(operation.receive);
  }
  std::sort(used_.begin(), used_.end());  // pointers into one block stand side by side
  Result<std::optional<Fence>> done =
      context.heap.fence_use(used_, entered.stream, /*exact=*/entered.overlap);
  visit_registered(group, [&](RegisteredMemory::Block& block) {
    if (entered.captured != nullptr) block.keep_for(entered.captured->graph);
    if (done && *done) block.fences.join(**done);
  });
  return done;
}

Result<CommState::Point> CommState::leave_eager(std::span<const Operation> group,
                                                const Entered& entered, const Status& queued) {
  const Status watched = watchdog_.queued(group, entered.stream);
  const Result<std::optional<Fence>> done = fence_used(group, entered);
  if (!queued || !watched || !done) {
    fail(!queued ? queued.error() : !watched ? watched.error() : done.error());
    return status().error();
  }
  return Point{.fence = *done, .stream = entered.stream};
}

Result<CommState::Point> CommState::leave_captured(std::span<const Operation> group,
                                                   const Entered& entered, const Status& queued) {
  CommStream& comm_stream = *entered.captured;
  const Result<std::optional<Fence>> fenced = fence_used(group, entered);
  if (!queued) {
    fail(queued.error());
    return status().error();
  }
  for (const Operation& operation : group) {
    ++comm_stream.operations;
    if (!is_common(operation)) continue;
    // Its size to the byte, which a description rounds.
    comm_stream.digest =
        digest(operation.describe(ranks) + std::to_string(operation.count), comm_stream.digest);
  }
  if (!fenced) return error(fenced.error().code(), fenced.error().message());
  const Result<EventHandle> done = record_captured(comm_stream, entered.stream);
  if (!done) return done.error();
  return Point{.capture = comm_stream.capture, .event = *done, .stream = entered.stream};
}

// The first time, the capture is told to hold the communicator: it makes the Graph of a
// CaptureScope, or, where the program ends the capture by itself, a graph of the driver's.
Result<CommStream*> CommState::join_capture(Stream stream, std::uint64_t id) {
  const bool is_new = comm_streams_.find(id) == nullptr;
  Result<CommStream*> captured = comm_streams_.of_capture(id);
  if (!captured || !is_new) return captured;
  const auto in_graph = std::make_shared<InGraph>(graphs);
  const Result<bool> scoped = context.heap.attach(
      stream, {stream, std::make_shared<CapturedCommunicator>(shared_from_this(), in_graph)});
  Status held = scoped ? Status() : Status(scoped.error());
  if (held && !*scoped) held = context.device.retain(stream, in_graph);
  if (held) {
    (*captured)->graph = in_graph;
    return captured;
  }
  (*captured)->capture = 0;
  return error(held.error().code(), held.error().message());
}

// The communication stream, behind what `stream` holds. In a capture it is part of that then, and
// the end of a CaptureScope joins it.
Result<Stream> CommState::fork(Stream stream, CommStream* captured) {
  if (captured == nullptr) {
    const Result<CommStream*> comm_stream = comm_streams_.eager();
    if (!comm_stream) return comm_stream.error();
    Status waits = context.heap.order(stream, (*comm_stream)->stream);
    if (!waits) return std::move(waits).error();
    return (*comm_stream)->stream;
  }
  if (!captured->forked) {
    if (Status given = comm_streams_.give_stream(*captured); !given) {
      return std::move(given).error();
    }
    const Result<bool> scoped = context.heap.attach(stream, {captured->stream, nullptr});
    captured->forked = scoped.ok();
    if (!scoped) return error(scoped.error().code(), scoped.error().message());
  }
  const Result<EventHandle> ready = record_captured(*captured, stream);
  if (!ready) return ready.error();
  if (Status waits = context.device.wait(captured->stream, *ready); !waits) {
    return std::move(waits).error();
  }
  return captured->stream;
}

// An event of the capture, behind what `stream` holds of it.
Result<EventHandle> CommState::record_captured(CommStream& captured, Stream stream) {
  Result<EventHandle> event = comm_streams_.event_of(captured);
  if (!event) return event;
  if (Status recorded = context.device.record(*event, stream); !recorded) {
    return std::move(recorded).error();
  }
  return event;
}

Status CommState::enqueue(std::span<const Operation> group, Stream stream) {
  const auto nccl_call = lock_nccl();
  if (Status works = usable(); !works) return works;  // it may have ended since the caller asked
  if (group.size() == 1) return context.nccl.enqueue(handle, group.front(), stream);
  if (Status started = context.nccl.group_start(); !started) return started;
  Status first = note(group, stream);
  Status ended = context.nccl.group_end();  // a group that was begun is ended, whatever happened
  return first ? std::move(ended) : std::move(first);
}

Status CommState::note(std::span<const Operation> group, Stream stream) {
  for (const Operation& operation : group) {
    if (Status noted = context.nccl.enqueue(handle, operation, stream); !noted) return noted;
  }
  return {};
}

}  // namespace weir
