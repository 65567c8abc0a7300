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

// Everything in `history` that can't be; none: all can. The first few of many. Of calls that see
// more than one thing this is promised (docs/statistics.md): a snapshot has the blocks of each
// stream as of one moment of its own, the device's gauges are levels that it had, and its peaks are
// at least those of each of its heaps.
std::vector<std::string> contradictions(const History& history);

// The parts of it, one a file.
using Complaints = std::vector<std::string>;
using HeapOfStream = std::map<std::uint64_t, HeapId>;
void check_snapshots(const History& history, const BlockLifetimes& lifetimes,
                     Complaints& complaints);
void check_statistics(const History& history, const BlockLifetimes& lifetimes,
                      const HeapOfStream& heaps, Complaints& complaints);

}  // namespace weir::test
