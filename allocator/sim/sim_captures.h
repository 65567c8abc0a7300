// SPDX-License-Identifier: Apache-2.0
// SimDevice's captures: which streams are being captured into which graph, and what breaks that.
//
// Errors: ErrorCode::capture for what the state of a capture forbids, ErrorCode::device for a bad
// handle. Some errors break a capture, as they do on the driver: its streams can then do nothing
// but wait for its end. Streams are known to exist. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sim/sim_graphs.h"
#include "sim/sim_streams.h"
#include "weir/device.h"

namespace weir::sim {

class Captures {
 public:
  Status begin(Stream stream, CaptureMode mode);
  // By the thread that began it, unless relaxed, and on the stream that it began on; else nothing
  // changes. Errors: broken; or a stream's work is not joined into the origin. The capture is over.
  Result<std::shared_ptr<Graph>> end(Stream stream);

  bool capturing(Stream stream) const { return captured_.contains(stream.id); }
  CaptureInfo info(Stream stream) const;
  // Breaks the captures, if they are not broken already, of the streams (their ids) that `concerns`
  // is true of. Returns whether there are any such captures.
  bool break_those(const std::function<bool(std::uint64_t)>& concerns, const std::string& why);

  // Of streams that are being captured.
  Status check_active(std::string_view call, Stream stream) const;
  void launch(Stream stream, std::span<const Access> accesses, Nanoseconds duration,
              Nanoseconds time, const SimRendezvous& rendezvous);
  Result<CapturedMark> mark(Stream stream) const;

  // Must this wait be decided here? Only one by or for a capture.
  bool concerns(Stream stream, const EventState& event) const {
    return capturing(stream) || event.captured.capture != 0;
  }
  // Adds to the stream's tips, or makes it part of the event's capture. A wait out of a capture for
  // anything outside it breaks the captures concerned.
  Status wait(Stream stream, const EventState& event);
  // The host asked about an event of a capture, which breaks it.
  Error asked_of(DeviceCall call, const CapturedMark& mark);
  // Or for the id of a captured stream, which breaks its capture.
  Error asked_for_id(Stream stream);

  // The graph holds the object.
  Status retain(Stream stream, std::shared_ptr<void> object);
  Result<std::vector<GraphNode>> tips(Stream stream) const;
  Status add_dependencies(Stream stream, std::span<const GraphNode> nodes);
  const Graph* find(GraphNode node) const;  // the graph, while it is being captured

 private:
  // A captured stream's place in its capture.
  struct Line {
    StreamIndex chain = 0;
    std::vector<NodeIndex> tips;
  };
  struct Capture {
    std::shared_ptr<Graph> graph;
    Stream origin;
    CaptureMode mode = CaptureMode::global;
    std::thread::id thread;
    std::string broken;                   // why, once it is
    std::map<std::uint64_t, Line> lines;  // by stream
  };

  Capture* find(std::uint64_t id);
  const Capture& of(Stream stream) const { return captures_.at(captured_.at(stream.id)); }
  Capture& of(Stream stream) { return captures_.at(captured_.at(stream.id)); }
  // Why `stream`, of the capture `waiting`, must not wait for `mark`, of the capture `from`; empty
  // if it may. Null: of none.
  static std::string why_not(Stream stream, const Capture* waiting, const CapturedMark& mark,
                             const Capture* from);
  void join(Stream stream, Capture& capture, const CapturedMark& mark);
  Status end_of(const Capture& capture) const;

  std::map<std::uint64_t, Capture> captures_;        // by id
  std::map<std::uint64_t, std::uint64_t> captured_;  // the capture of each captured stream
  std::uint64_t next_id_ = 1;
};

}  // namespace weir::sim
