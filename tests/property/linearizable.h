// SPDX-License-Identifier: Apache-2.0
// Whether what threads saw of a device heap can be explained by its calls having taken place one at
// a time, each at a moment between its begin and its end. (Linearizability: Herlihy & Wing 1990.)
//
// To decide that in general is NP-hard. Here every block is the history of one interval, which
// begins within its allocate and ends within its deallocate, so that what is certain and what is
// possible at each moment is known, and each call is checked against that. What is reported can't
// be explained; a history of which nothing is reported might still have no single order that
// explains all of its calls together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/property/block_lifetimes.h"
#include "tests/property/history.h"

namespace weir::test {

// What is promised of calls that see more than one thing. (docs/statistics.md)
struct Promises {
  // The blocks of all streams as of one moment; else those of each stream as of one of its own.
  bool snapshots_of_one_moment = false;
  // The device's gauges are levels that it had; else they lie between the sums, over its heaps, of
  // the levels that those had.
  bool device_gauges_of_one_moment = true;
  // The device's peaks are at least every level that it had for certain; else at least those of
  // each of its heaps.
  bool device_peaks_of_all_heaps = true;
};

// Everything in `history` that can't be; none: all can. The first few of many.
std::vector<std::string> contradictions(const History& history, const Promises& promises = {});

// The parts of it, one a file.
using Complaints = std::vector<std::string>;
using HeapOfStream = std::map<std::uint64_t, HeapId>;
void check_snapshots(const History& history, const BlockLifetimes& lifetimes,
                     const Promises& promises, Complaints& complaints);
void check_statistics(const History& history, const BlockLifetimes& lifetimes,
                      const HeapOfStream& heaps, const Promises& promises, Complaints& complaints);

}  // namespace weir::test
