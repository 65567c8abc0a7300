// SPDX-License-Identifier: Apache-2.0
// A trace as a recording: replayed on the simulated device, every event kept.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "replay/trace.h"
#include "weir/recording.h"
#include "weir/result.h"

namespace weir {

// What is known of the blocks of a trace beside the trace: who allocated them, and when.
struct TraceStacks {
  std::vector<RecordedFrame> frames;
  std::vector<std::vector<std::uint32_t>> stacks{{}};  // as in Recording
  std::vector<std::uint32_t> of_block;  // by block, in order of allocation; empty: unknown
  std::size_t early_blocks = 0;  // so many, the first, were there before the program's first event
  bool has_times = true;         // else the trace's times mean nothing, and events are numbered
  // Of the trace's markers of failed requests, in order; empty: they are marks, and nothing more.
  struct Failure {
    Nanoseconds time;  // since the trace's beginning
    std::uint32_t stack = 0;
  };
  std::vector<Failure> failures;
};

// What Weir does when it runs the trace once. Early blocks are there at the beginning. Time begins
// with the trace; streams have the trace's numbers (a captured one, with its highest bit set); its
// markers are marks; blocks that it never freed are live at the end. `progress`: as ReplayOptions
// has it. The caller adds the texts of stacks. Errors: invalid_input, with the line: the simulated
// device can't run it.
Result<Recording> replayed(
    const Trace& trace, const TraceStacks& stacks = {},
    std::function<void(std::uint64_t done, std::uint64_t all)> progress = {});

}  // namespace weir
