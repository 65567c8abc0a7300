// SPDX-License-Identifier: Apache-2.0
// A progress bar on the terminal.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace weir {

// Draws on stderr, and only where that is a terminal, once the work has taken a second: a bar, or
// for how long it has gone on where nobody knows how much there is. Erases itself when done.
class ProgressBar {
 public:
  // `label`: what is under way.
  ProgressBar(std::string label, bool wanted);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::uint64_t done, std::uint64_t all);

 private:
  void draw_until_done();
  std::string line(std::chrono::seconds since_begin) const;

  const std::string label_;
  std::atomic<std::uint64_t> done_{0}, all_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
  bool is_finished_ = false;  // guarded by mutex_
  std::thread drawer_;        // none: nothing is drawn
};

}  // namespace weir
