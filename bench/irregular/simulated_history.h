// SPDX-License-Identifier: Apache-2.0
// Runs a history over a heap on the simulated device, with work in the blocks: the same figures
// every time, on every machine.
#pragma once

#include <cstdint>

#include "bench/irregular/heap_counts.h"
#include "suite/irregular_families.h"
#include "weir/device_heap.h"
#include "weir/types.h"

namespace weir::bench {

struct SimulatedFigures {
  double ratio = 0;        // most memory held / most live, over all phases
  double first_ratio = 0;  // the same, up to the end of the first measured phase
  double first_pairs = 0;  // pairs of calls in the first measured phase
  double later_pairs = 0;  // ... in those after it
  HeapCounts first, later;
  Nanoseconds first_driver_time, later_driver_time;  // as the simulated device's calls cost
  // What the program's own work takes at least in the phases after the first, as remap_budget.h
  // counts it: the host's 60 us a pair, and the GPU's 3 ms for each GiB that is allocated.
  Nanoseconds later_least_time;
  std::uint64_t host_waits = 0;
  std::uint64_t races = 0;
};

// Threads take turns, a call each, on one host thread. An allocated block is written by its stream.
// Another stream that uses it reads it after that. Kernels take a little longer than the host takes
// to launch them, and the host waits for all of them after each phase, so the GPU falls behind the
// host by up to a few milliseconds.
//
// Throws std::runtime_error if a call fails, and if the heap is unsound at the end.
SimulatedFigures run_simulated(const Family& family, Trust trust, std::uint64_t seed,
                               HistoryLength length);

}  // namespace weir::bench
