// SPDX-License-Identifier: Apache-2.0
#include "suite/call_timer.h"

#include <sys/resource.h>

#include <algorithm>

namespace weir::bench {
namespace {

// How often the system has taken the processor from this thread.
long preemptions() {
  rusage usage{};
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

double measured_clock_cost_ns() {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 20, kReadings = 1000;
  double least = 1e9;  // the least: other work on the machine only adds
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    Clock::time_point last;
    for (int i = 0; i < kReadings; ++i) last = Clock::now();
    least = std::min(least, std::chrono::duration<double, std::nano>(last - start).count());
  }
  return least / kReadings;
}

}  // namespace

CallTimes& CallTimes::operator+=(const CallTimes& other) {
  calls += other.calls;
  slow += other.slow;
  preempted += other.preempted;
  slowest_ns = std::max(slowest_ns, other.slowest_ns);
  return *this;
}

double CallTimes::slow_share() const {
  return calls == 0 ? 0 : static_cast<double>(slow) / static_cast<double>(calls);
}

void CallTimer::start() {
  preemptions_ = preemptions();
  last_ = Clock::now();
}

void CallTimer::note_slow(double took) {
  if (took > kSlowCallNs) {
    // A preempted thread waits for a share of the processor, milliseconds where others are at work:
    // that says nothing of the allocator. (A call that waits for a lock gives the processor up of
    // its own accord, which is counted elsewhere.)
    const long so_far = preemptions();
    const bool preempted = so_far != preemptions_;
    preemptions_ = so_far;
    if (preempted) {
      ++times_.preempted;
      last_ = Clock::now();
      return;
    }
    ++times_.slow;
    last_ = Clock::now();  // the question took a microsecond itself
  }
  times_.slowest_ns = std::max(times_.slowest_ns, took);
}

double clock_cost_ns() {
  static const double cost = measured_clock_cost_ns();
  return cost;
}

}  // namespace weir::bench
