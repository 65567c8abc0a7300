// SPDX-License-Identifier: Apache-2.0
#include "bench/support/together.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace weir::bench {

double seconds_together(int threads, const std::function<void(int)>& prepare,
                        const std::function<void(int)>& work) {
  using Clock = std::chrono::steady_clock;
  struct Times {
    Clock::time_point begin, end;
  };
  std::vector<Times> times(static_cast<std::size_t>(threads));
  std::atomic<int> prepared = 0;
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      prepare(thread);
      // Awake, so that they begin within a microsecond; yielding, where processors are few.
      ++prepared;
      while (prepared < threads) std::this_thread::yield();
      const Clock::time_point begin = Clock::now();
      work(thread);
      times[static_cast<std::size_t>(thread)] = {begin, Clock::now()};
    });
  }
  for (std::thread& thread : running) thread.join();
  Times all = times.front();
  for (const Times& each : times) {
    all.begin = std::min(all.begin, each.begin);
    all.end = std::max(all.end, each.end);
  }
  return std::chrono::duration<double>(all.end - all.begin).count();
}

}  // namespace weir::bench
