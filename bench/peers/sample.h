// SPDX-License-Identifier: Apache-2.0
// Timing of a loop in batches, for a given time.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace weir::peers {

using Clock = std::chrono::steady_clock;

inline double nanoseconds(Clock::duration length) {
  return std::chrono::duration<double, std::nano>(length).count();
}

// What one loop took, in nanoseconds of wall time a pair of calls, as one thread sees them.
struct Sample {
  double mean = 0;
  double median = 0;  // of the batches; with several threads: of the threads
  double low = 0;     // 5 % of the batches were faster; with several threads: the fastest thread
  double high = 0;    // 5 % were slower; the slowest thread
  std::uint64_t pairs = 0;  // counted in all
};

// `batches`: nanoseconds a pair, each over `pairs_each` pairs; at least one.
Sample summary(std::vector<double> batches, std::uint64_t pairs_each);

// Calls `batch`, which does `pairs_each` pairs, for `length` and at least once; `between`, which is
// not timed, after each. `batch` returns false when there is no more to do; that call isn't
// counted.
template <class Batch, class Between>
Sample timed(Clock::duration length, std::uint64_t pairs_each, Batch batch, Between between) {
  std::vector<double> batches;
  const Clock::time_point end = Clock::now() + length;
  while (true) {
    const Clock::time_point start = Clock::now();
    const bool done = batch();
    const Clock::time_point stop = Clock::now();
    if (!done) break;
    batches.push_back(nanoseconds(stop - start) / static_cast<double>(pairs_each));
    between();
    if (stop >= end) break;
  }
  return summary(std::move(batches), pairs_each);
}

}  // namespace weir::peers
