// SPDX-License-Identifier: Apache-2.0
#include "bench/irregular/timed_history.h"

#include <algorithm>

namespace weir::bench {

double HistoryTimes::later_ns() const {
  std::vector<double> later;
  for (const PhaseTimes& phase : std::span(phases).subspan(1)) later.push_back(phase.ns_per_pair);
  const auto middle = later.begin() + static_cast<std::ptrdiff_t>(later.size() / 2);
  std::nth_element(later.begin(), middle, later.end());
  return *middle;
}

CallTimes HistoryTimes::later_calls() const {
  CallTimes sum;
  for (const PhaseTimes& phase : std::span(phases).subspan(1)) sum += phase.calls;
  return sum;
}

namespace internal {

PhaseTimes phase_times(double seconds, const History::Calls& calls,
                       std::span<const CallTimer> timers) {
  PhaseTimes phase;
  for (const CallTimer& timer : timers) phase.calls += timer.times();
  const auto threads = static_cast<double>(calls.size());
  const double clock_ns = clock_cost_ns() * static_cast<double>(phase.calls.calls) / threads;
  phase.ns_per_pair = (seconds * 1e9 - clock_ns) * threads / pairs_of(calls);
  return phase;
}

}  // namespace internal
}  // namespace weir::bench
