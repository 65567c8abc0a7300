// SPDX-License-Identifier: Apache-2.0
// One way through: NCCL is asked on the caller's stream, or on one that waits for it; the blocks
// are fenced.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/comm_state.h"

namespace weir {
namespace {

// Within a capture: later work of `later` runs after what `earlier` holds. A stream that is in no
// capture joins this one.
Status order_captured(Device& device, Stream earlier, Stream later) {
  const Result<EventHandle> event = device.create_event();
  if (!event) return event.error();
  Status ordered = device.record(*event, earlier);
  if (ordered) ordered = device.wait(later, *event);
  (void)device.destroy_event(*event);
  return ordered;
}

// May the group be queued on the stream, which is in that capture, if it is in one?
Status check(const CommState& comm, std::span<const Operation> group, Stream stream,
             const CaptureInfo& info) {
  for (const Operation& operation : group) {
    if (Status good = operation.check(comm.ranks, comm.rank); !good) {
      return comm.error(good.error());
    }
  }
  if (info.status == CaptureInfo::Status::none) return {};
  const bool broken = info.status == CaptureInfo::Status::invalidated;
  if (!broken && comm.prepared) return {};
  return comm.error(
      ErrorCode::capture,
      fmt::format("{} on stream {}, which is being captured: {}",
                  group.front().describe(comm.ranks), stream.id,
                  broken
                      ? "the capture was broken by an earlier call"
                      : "it is not prepared, and connecting now would break the capture, which "
                        "is whole still: call prepare() on every rank before the capture begins"));
}

}  // namespace

Result<WorkPoint> CommState::run(std::span<const Operation> group, Stream stream, bool overlap) {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return std::move(works).error();
  const Result<CaptureInfo> info = context.device.capture_info(stream);
  if (!info) return info.error();
  if (Status good = check(*this, group, stream, *info); !good) return std::move(good).error();
  const Result<Entered> entered = enter(stream, overlap, *info);
  if (!entered) return entered.error();
  const Status queued = enqueue(group, entered->stream);
  return leave(group, *entered, queued);
}

Result<CommState::Entered> CommState::enter(Stream stream, bool overlap, const CaptureInfo& info) {
  Entered entered{.stream = stream, .capture = info.id, .overlap = overlap};
  if (info.status != CaptureInfo::Status::none) {
    const Result<Captured*> joined = join_capture(stream, info.id);
    if (!joined) return joined.error();
    entered.captured = *joined;
  }
  if (overlap) {
    const Result<Stream> forked = fork(stream, entered);
    if (!forked) return forked.error();
    entered.stream = *forked;
  }
  return entered;
}

// The first time, the capture is told to hold the communicator: it makes the Graph of a
// CaptureScope, or, where the program ends the capture by itself, a graph of the driver's.
Result<Captured*> CommState::join_capture(Stream stream, std::uint64_t id) {
  if (Captured* const known = captures_.find(id)) return known;
  ++*graphs;
  const std::shared_ptr<void> in_graph(graphs.get(), [count = graphs](void*) { --*count; });
  const Result<bool> scoped = context.heap.captures().attach(
      stream, {stream, std::make_shared<CapturedCommunicator>(open(), in_graph)});
  Status held = scoped ? Status() : Status(scoped.error());
  if (held && !*scoped) held = context.device.retain(stream, in_graph);
  if (!held) return error(held.error());
  return &captures_.add(id, in_graph);
}

// The communication stream, behind what `stream` holds. In a capture it is part of that then, and
// the end of a CaptureScope joins it.
Result<Stream> CommState::fork(Stream stream, const Entered& entered) {
  if (entered.captured == nullptr) {
    Result<Stream> comm_stream = captures_.eager_stream();
    if (!comm_stream) return comm_stream;
    const Status waits = context.heap.order(stream, *comm_stream);
    return waits ? comm_stream : waits.error();
  }
  Stream& forked = entered.captured->forked;
  if (forked.id == 0) {
    Result<Stream> made = captures_.stream_to_fork();
    if (!made) return made;
    const Result<bool> scoped = context.heap.captures().attach(stream, {*made, nullptr});
    if (!scoped) return error(scoped.error());
    forked = *made;
  }
  const Status ordered = order_captured(context.device, stream, forked);
  return ordered ? Result<Stream>(forked) : ordered.error();
}

Status CommState::enqueue(std::span<const Operation> group, Stream stream) {
  const auto nccl_call = lock_nccl();
  if (Status works = status(); !works) return works;  // it may have ended since the caller asked
  return context.nccl.enqueue(handle, group, stream);
}

Result<std::optional<Fence>> CommState::fence_used(std::span<const Operation> group,
                                                   const Entered& entered) {
  used_.clear();
  for (const Operation& operation : group) {
    if (operation.reads(ranks, rank) > 0_B) used_.push_back(operation.send);
    if (operation.writes(ranks, rank) > 0_B) used_.push_back(operation.receive);
  }
  std::sort(used_.begin(), used_.end());  // pointers into one block stand side by side
  return context.heap.fence_use(used_, entered.stream, /*exact=*/entered.overlap);
}

// Memory is fenced whatever came of the call: NCCL may have queued some of the group.
Result<WorkPoint> CommState::leave(std::span<const Operation> group, const Entered& entered,
                                   const Status& queued) {
  Captured* const captured = entered.captured;
  const Status watched = captured == nullptr ? watchdog_.queued(group, entered.stream) : Status();
  const Result<std::optional<Fence>> fenced = fence_used(group, entered);
  if (captured == nullptr && ranks > 1) context.heap.note_remote_work(entered.stream);
  if (!queued || !watched || (!fenced && captured == nullptr)) {
    fail(!queued ? queued.error() : !watched ? watched.error() : fenced.error());
    return status().error();
  }
  if (captured == nullptr) return WorkPoint{.fence = *fenced, .stream = entered.stream};
  for (const Operation& operation : group) captured->operations.add(operation, ranks);
  if (!fenced) return error(fenced.error());
  Result<std::vector<GraphNode>> nodes = context.device.capture_tips(entered.stream);
  if (!nodes) return std::move(nodes).error();
  return WorkPoint{
      .stream = entered.stream, .capture = entered.capture, .nodes = *std::move(nodes)};
}

Status CommState::wait(Stream stream, const WorkPoint& point) {
  const Result<CaptureInfo> info = context.device.capture_info(stream);
  if (!info) return info.error();
  const auto refused = [&](const std::string& why) {
    return error(ErrorCode::capture, fmt::format("stream {} may not wait: {}", stream.id, why));
  };
  if (point.capture == 0) {
    if (info->status != CaptureInfo::Status::none) {
      return refused(
          "the work was eager, and the stream is being captured: wait before the capture begins");
    }
    return point.fence ? context.heap.wait(stream, *point.fence)
                       : context.heap.order(point.stream, stream);
  }
  if (info->id == point.capture) {
    if (stream == point.stream) return {};
    return context.device.add_capture_dependencies(stream, point.nodes);
  }
  const Result<CaptureInfo> its = context.device.capture_info(point.stream);
  if (!its) return its.error();
  if (its->id != point.capture) {
    return refused(
        "the capture that the work is part of is over: order other work after the launch of its "
        "graph");
  }
  if (info->status != CaptureInfo::Status::none) {
    return refused("it is being captured into another graph than the work");
  }
  return order_captured(context.device, point.stream, stream);
}

}  // namespace weir
