// SPDX-License-Identifier: Apache-2.0
// Runs a recorded program through Weir, and measures what that took.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/replay_device.h"
#include "replay/trace.h"
#include "weir/device_heap.h"
#include "weir/event.h"

namespace weir {

// Observes a replay: each call comes as the thing happens.
class ReplayWatcher : public EventSink {
 public:
  // `id` (Stream::id) stands for the stream that the trace calls `number`; of the one that stands
  // for nothing in the trace, the first number that no stream of the trace has.
  virtual void on_stream(std::uint64_t id, std::uint64_t number) = 0;
  virtual void on_pass_begin(Nanoseconds time) = 0;
  virtual void on_phase(std::string_view name, Nanoseconds time) = 0;
  // The trace is over; what it never freed is given back next.
  virtual void on_pass_end(Nanoseconds time) = 0;
};

struct ReplayOptions {
  Bytes limit = {};  // on physical memory; zero: none
  ReusePolicy policy = HeapOptions{}.reuse;
  Trust trust = Trust::told;
  MemoryKind memory = MemoryKind::pages;
  Addresses addresses = Addresses::any;
  unsigned passes = 1;             // of the whole trace, one after the other, on one heap
  bool validate = false;           // the whole heap, after every operation
  std::uint64_t seed = 1;          // of the blocks' contents
  std::uint64_t graph_orders = 0;  // random orders that each captured graph is run in, simulated
  // Takes no fences: for tests that the checker then finds races.
  bool leave_out_fences = false;
  ReplayWatcher* watcher = nullptr;  // who is told what happens, if anybody
  // Called now and then with the operations done and to do in all.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

// What was measured: over one pass, or over all of them.
struct ReplayFigures {
  Bytes peak_reserved;      // most physical memory held at once
  Nanoseconds trace_time;   // how long the recorded program took, each pass added
  Nanoseconds driver_time;  // the host's, in the heap's calls of the device
  std::array<std::uint64_t, kDeviceCalls> driver_calls{};
  std::uint64_t fences = 0;        // that the program took on blocks used elsewhere
  std::uint64_t stream_waits = 0;  // waits on the GPU that the heap asked for
  std::uint64_t host_waits = 0;
  std::optional<std::uint64_t> races;     // none: nobody looked
  Bytes reserved;                         // held at the end
  std::uint64_t pages = 0, mappings = 0;  // likewise

  std::uint64_t calls(DeviceCall call) const { return driver_calls[static_cast<int>(call)]; }
};

// Why a replay ended before the end.
struct ReplayFailure {
  enum class Kind { out_of_memory, unsound, device };
  Kind kind = Kind::device;
  std::uint32_t line = 0;  // of the file: the operation that failed; 0: it has no lines
  unsigned pass = 0;       // from 1
  std::string message;
  std::vector<std::string> held;  // out of memory: what held it, largest first
};

struct ReplayReport {
  std::string trace;
  std::string device;
  ReplayOptions options;
  Bytes peak_live;         // the program's own
  Nanoseconds trace_time;  // how long the recorded program took: one pass
  std::uint64_t blocks = 0, streams = 0;
  std::uint64_t late_uses = 0;  // blocks that another stream used past the user's free
  std::uint64_t graphs = 0;     // that its captured phases were captured into, in all passes
  ReplayFigures all;
  std::vector<PoolLayout> layouts;    // at the end
  std::vector<ReplayFigures> passes;  // the last one is cut short by a failure
  std::optional<ReplayFailure> failure;
  // What the driver itself says went to the heap by the end: to compare with all.reserved. None:
  // the driver would not say.
  std::optional<Bytes> driver_reserved;
  std::string first_race;

  // Peak reserved over peak live; 1 when there was nothing to hold and nothing held.
  double ratio(const ReplayFigures& figures) const;
};

// Errors: of a device that can't even begin. Everything later is the report's `failure`.
Result<ReplayReport> replay(const Trace& trace, ReplayDevice& device, const ReplayOptions& options);

}  // namespace weir
