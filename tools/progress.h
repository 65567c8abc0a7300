// A progress bar on the terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace weir {

// Draws on stderr, and only where that is a terminal. Erases itself when done.
class ProgressBar {
 public:
  // `label`: what is under way.
  ProgressBar(std::string label, bool wanted);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::uint64_t done, std::uint64_t all);

 private:
  const std::string label_;
  const bool shown_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace weir
