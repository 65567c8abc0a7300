// SPDX-License-Identifier: Apache-2.0
// Runs a program on an allocator, checks what the allocator gives out, and measures it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "suite/allocator.h"
#include "suite/program.h"

namespace weir::suite {

// By this machine's clock; another figure each time.
struct HostTime {
  double median_ns_per_pair = 0;  // of batches of 100 allocations and frees
  double slowest_call_us = 0;     // of all calls in which the thread was not preempted
};

struct Outcome {
  std::string allocator, program;
  std::string failure;  // why there are no figures; empty: there are
  // The same in every run.
  std::uint64_t peak_held = 0;
  double ratio = 0;           // peak_held / ProgramNeeds::peak_live
  double weighted_ratio = 0;  // what was held over what was live, both summed over time
  std::optional<std::uint64_t> driver_calls, waits;
  std::optional<HostTime> host;
};

// Fails if a call fails, if blocks overlap or are not aligned to kLeastAlignment, and if the
// allocator says at any time that it holds less than what is live.
Outcome measure_memory(const AllocatorKind& kind, const Program& program);

// On an allocator of its own, without any check between calls.
Result<HostTime> measure_host_time(const AllocatorKind& kind, const Program& program);

}  // namespace weir::suite
