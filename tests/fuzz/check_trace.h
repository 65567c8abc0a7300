// SPDX-License-Identifier: Apache-2.0
// For the fuzzing targets of what is read as a trace.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "replay/trace.h"

namespace weir::fuzz {

inline void require(bool holds) {
  if (!holds) std::abort();
}

// What replay() relies on.
inline void check(const Trace& trace) {
  std::vector<char> live(trace.blocks.size()), seen(trace.blocks.size());
  Bytes now, peak;
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
    const TraceBlock& block = trace.blocks[op.target];
    require(block.stream < trace.streams.size());
    const Bytes rounded = round_up(block.bytes, kGrain);
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

}  // namespace weir::fuzz
