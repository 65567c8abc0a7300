// SPDX-License-Identifier: Apache-2.0
// Whatever a file holds, reading it gives a trace that makes sense, or an error with file and line.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "replay/trace_reader.h"

namespace {

using weir::Trace;
using weir::TraceOp;

void require(bool holds) {
  if (!holds) std::abort();
}

// What replay() relies on.
void check(const Trace& trace) {
  std::vector<char> live(trace.blocks.size()), seen(trace.blocks.size());
  weir::Bytes now, peak;
  std::int64_t time = trace.start_us;
  std::uint32_t line = 0;
  for (const TraceOp& op : trace.ops) {
    require(op.time_us >= time && op.time_us <= trace.end_us);
    require(op.line > line && op.line <= trace.lines);
    time = op.time_us;
    line = op.line;
    if (op.kind == TraceOp::Kind::marker) {
      require(op.target < trace.markers.size());
      continue;
    }
    require(op.stream < trace.streams.size());
    if (op.kind == TraceOp::Kind::wait) {
      require(op.target < trace.streams.size());
      continue;
    }
    require(op.target < trace.blocks.size());
    const weir::TraceBlock& block = trace.blocks[op.target];
    require(block.stream < trace.streams.size());
    const weir::Bytes rounded = weir::round_up(block.bytes, weir::kGrain);
    if (op.kind == TraceOp::Kind::allocate) {
      require(!seen[op.target]);
      live[op.target] = seen[op.target] = 1;
      now += rounded;
    } else {
      require(live[op.target]);
      if (op.kind == TraceOp::Kind::free) live[op.target] = 0, now -= rounded;
      if (op.kind == TraceOp::Kind::free && block.used_until_us()) {
        require(*block.used_until_us() >= op.time_us && *block.used_until_us() <= trace.end_us);
      }
    }
    if (now > peak) peak = now;
  }
  require(peak == trace.peak_live);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const weir::Result<Trace> trace = weir::parse_trace(text, "fuzz.trace");
  if (trace.ok()) {
    check(*trace);
  } else {
    require(trace.error().code() == weir::ErrorCode::invalid_input);
    require(trace.error().message().starts_with("fuzz.trace:"));
  }
  return 0;
}
