// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_captures.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace weir::sim {
namespace {

std::string name(Stream stream) { return "stream " + std::to_string(stream.id); }

Error broken_by(std::string_view call, const std::string& why) {
  return {ErrorCode::capture, std::string(call) + ": " + why};
}

Error not_captured(std::string_view call, Stream stream) {
  return broken_by(call, name(stream) + " is not being captured");
}

void add_tips(std::vector<NodeIndex>& tips, std::span<const NodeIndex> more) {
  for (const NodeIndex tip : more) {
    if (std::find(tips.begin(), tips.end(), tip) == tips.end()) tips.push_back(tip);
  }
}

}  // namespace

Captures::Capture* Captures::find(std::uint64_t id) {
  const auto it = captures_.find(id);
  return it == captures_.end() ? nullptr : &it->second;
}

Status Captures::begin(Stream stream, CaptureMode mode) {
  if (capturing(stream)) {
    return broken_by("begin_capture", name(stream) + " is being captured already");
  }
  if (stream.id == kDefaultStreamId) {
    return broken_by("begin_capture", "the legacy default stream can't be captured");
  }
  const std::uint64_t id = next_id_++;
  Capture& capture = captures_[id];
  capture.graph = std::make_shared<Graph>(id);
  capture.origin = stream;
  capture.mode = mode;
  capture.thread = std::this_thread::get_id();
  join(stream, capture, {.capture = id, .tips = {}});
  return {};
}

void Captures::join(Stream stream, Capture& capture, const CapturedMark& mark) {
  captured_[stream.id] = mark.capture;
  capture.lines[stream.id] = {.chain = capture.graph->add_chain(stream.id), .tips = mark.tips};
}

Result<std::shared_ptr<Graph>> Captures::end(Stream stream) {
  constexpr std::string_view kCall = "end_capture";
  if (!capturing(stream)) return not_captured(kCall, stream);
  Capture& capture = of(stream);
  if (capture.origin != stream) {
    return broken_by(kCall, "the capture of " + name(stream) + " began on " + name(capture.origin) +
                                ": end it there");
  }
  if (capture.mode != CaptureMode::relaxed && capture.thread != std::this_thread::get_id()) {
    return broken_by(kCall, "another thread began the capture of " + name(stream) +
                                ": end it there, or begin it as relaxed");
  }
  Status ended = end_of(capture);
  std::shared_ptr<Graph> graph = std::move(capture.graph);
  for (const auto& [id, line] : capture.lines) captured_.erase(id);
  captures_.erase(graph->id());
  if (!ended) return std::move(ended).error();
  return graph;
}

Status Captures::end_of(const Capture& capture) const {
  constexpr std::string_view kCall = "end_capture";
  if (!capture.broken.empty()) return broken_by(kCall, "the capture is broken: " + capture.broken);
  const std::vector<NodeIndex>& end = capture.lines.at(capture.origin.id).tips;
  for (const auto& [id, line] : capture.lines) {
    if (capture.graph->reaches(end, line.tips)) continue;
    return broken_by(kCall, "work of stream " + std::to_string(id) + " is not joined: have " +
                                name(capture.origin) + ", where the capture began, wait for it");
  }
  return {};
}

CaptureInfo Captures::info(Stream stream) const {
  if (!capturing(stream)) return {};
  const bool active = of(stream).broken.empty();
  return {.status = active ? CaptureInfo::Status::active : CaptureInfo::Status::invalidated,
          .id = captured_.at(stream.id)};
}

bool Captures::break_those(const std::function<bool(std::uint64_t)>& concerns,
                           const std::string& why) {
  bool any = false;
  for (auto& [id, capture] : captures_) {
    const bool concerned = std::any_of(capture.lines.begin(), capture.lines.end(),
                                       [&](const auto& line) { return concerns(line.first); });
    if (!concerned) continue;
    any = true;
    if (capture.broken.empty()) capture.broken = why;
  }
  return any;
}

Status Captures::check_active(std::string_view call, Stream stream) const {
  if (!capturing(stream)) return not_captured(call, stream);
  const std::string& why = of(stream).broken;
  if (why.empty()) return {};
  return broken_by(call, "the capture of " + name(stream) + " is broken: " + why);
}

void Captures::launch(Stream stream, std::span<const Access> accesses, Nanoseconds duration,
                      Nanoseconds time, const SimRendezvous& rendezvous) {
  Capture& capture = of(stream);
  Line& line = capture.lines.at(stream.id);
  const NodeIndex node = capture.graph->add({.chain = line.chain,
                                             .position = 0,
                                             .clock = {},
                                             .dependencies = std::move(line.tips),
                                             .accesses = {accesses.begin(), accesses.end()},
                                             .duration = duration,
                                             .time = time,
                                             .rendezvous = rendezvous});
  line.tips = {node};
}

Result<CapturedMark> Captures::mark(Stream stream) const {
  if (Status active = check_active("record", stream); !active) {
    return std::move(active).error();
  }
  return CapturedMark{.capture = captured_.at(stream.id),
                      .tips = of(stream).lines.at(stream.id).tips};
}

Status Captures::wait(Stream stream, const EventState& event) {
  Capture* const waiting = capturing(stream) ? &of(stream) : nullptr;
  if (waiting != nullptr) {
    if (Status active = check_active("wait", stream); !active) return active;
  }
  const CapturedMark& mark = event.captured;
  if (mark.capture == 0 && !event.recorded) return {};
  Capture* const from = find(mark.capture);
  if (const std::string why = why_not(stream, waiting, mark, from); !why.empty()) {
    for (Capture* const capture : {waiting, from}) {
      if (capture != nullptr && capture->broken.empty()) capture->broken = why;
    }
    return broken_by("wait", why);
  }
  if (!from->broken.empty()) {
    return broken_by("wait", "the capture of the event is broken: " + from->broken);
  }
  if (waiting == nullptr) {
    join(stream, *from, mark);
  } else {
    add_tips(waiting->lines.at(stream.id).tips, mark.tips);
  }
  return {};
}

std::string Captures::why_not(Stream stream, const Capture* waiting, const CapturedMark& mark,
                              const Capture* from) {
  if (mark.capture == 0) return name(stream) + ", captured, waited for an eager event";
  if (from == nullptr) return name(stream) + " waited for an event of a capture that ended";
  if (waiting != nullptr && waiting != from) {
    return name(stream) + " waited for an event of another capture";
  }
  if (stream.id == kDefaultStreamId) {
    return "the legacy default stream waited for an event of a capture";
  }
  return {};
}

Error Captures::asked_of(DeviceCall call, const CapturedMark& mark) {
  const std::string why = std::string(name_of(call)) + " of an event recorded in a capture";
  Capture* const capture = find(mark.capture);
  if (capture != nullptr && capture->broken.empty()) capture->broken = why;
  return {ErrorCode::capture, why};
}

Error Captures::asked_for_id(Stream stream) {
  const std::string why = "the id of " + name(stream) + " was asked for while it was captured";
  if (std::string& broken = of(stream).broken; broken.empty()) broken = why;
  return {ErrorCode::capture, "stream: " + why};
}

Status Captures::retain(Stream stream, std::shared_ptr<void> object) {
  if (Status active = check_active("retain", stream); !active) return active;
  of(stream).graph->retain(std::move(object));
  return {};
}

Result<std::vector<GraphNode>> Captures::tips(Stream stream) const {
  if (Status active = check_active("capture_tips", stream); !active) {
    return std::move(active).error();
  }
  const Capture& capture = of(stream);
  return handles(*capture.graph, capture.lines.at(stream.id).tips);
}

Status Captures::add_dependencies(Stream stream, std::span<const GraphNode> nodes) {
  constexpr std::string_view kCall = "add_capture_dependencies";
  if (Status active = check_active(kCall, stream); !active) return active;
  Capture& capture = of(stream);
  std::vector<NodeIndex> found;
  for (const GraphNode node : nodes) {
    const std::optional<NodeIndex> index = capture.graph->find(node);
    if (!index) {
      return Error(ErrorCode::device, std::string(kCall) + ": invalid value: node " +
                                          std::to_string(node.value) +
                                          " is not of the capture of " + name(stream));
    }
    found.push_back(*index);
  }
  add_tips(capture.lines.at(stream.id).tips, found);
  return {};
}

const Graph* Captures::find(GraphNode node) const {
  const auto it = captures_.find(graph_id(node));
  return it == captures_.end() ? nullptr : it->second.graph.get();
}

}  // namespace weir::sim
