// SPDX-License-Identifier: Apache-2.0
// Times calls one by one.
#pragma once

#include <chrono>
#include <cstdint>

namespace weir::bench {

inline constexpr double kSlowCallNs = 10'000;

struct CallTimes {
  std::uint64_t calls = 0;
  std::uint64_t slow = 0;       // took longer than kSlowCallNs, and are not among the preempted
  std::uint64_t preempted = 0;  // slow, and the system took the processor away during the call
  double slowest_ns = 0;        // of the calls that were not preempted

  CallTimes& operator+=(const CallTimes& other);
  double slow_share() const;  // of all calls
};

// The clock is read once between two calls, so a call's time holds the caller's few instructions
// between calls, and one reading of the clock. Used by one thread.
class CallTimer {
 public:
  // The thread is about to make its first call.
  void start();
  // It made a call, and is about to make the next.
  void called() {
    const Clock::time_point now = Clock::now();
    const double took = std::chrono::duration<double, std::nano>(now - last_).count();
    last_ = now;
    ++times_.calls;
    if (took > times_.slowest_ns || took > kSlowCallNs) [[unlikely]]
      note_slow(took);
  }

  const CallTimes& times() const { return times_; }

 private:
  using Clock = std::chrono::steady_clock;

  void note_slow(double took);

  Clock::time_point last_;
  CallTimes times_;
  long preemptions_ = 0;  // of this thread so far, as the system counts them
};

// What one reading of the clock costs, measured once.
double clock_cost_ns();

}  // namespace weir::bench
