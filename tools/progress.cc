// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "replay/report_table.h"
#include "terminal.h"

namespace weir {
namespace {
constexpr std::chrono::milliseconds kBefore{1000}, kBetween{100};
constexpr std::size_t kBar = 30, kBesides = 12;  // columns of the bar; of what stands around it
constexpr const char* kErase = "\r\033[K";
}  // namespace

ProgressBar::ProgressBar(std::string label, bool wanted) : label_(printable(label)) {
  if (wanted && isatty(STDERR_FILENO) == 1) drawer_ = std::thread([this] { draw_until_done(); });
}

ProgressBar::~ProgressBar() {
  if (!drawer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;
  }
  finished_.notify_one();
  drawer_.join();
}

void ProgressBar::update(std::uint64_t done, std::uint64_t all) {
  done_ = done;
  all_ = all;
}

// A line that is wider than the terminal could not be erased.
std::string ProgressBar::line(std::chrono::seconds since_begin) const {
  const std::size_t columns = columns_of(STDERR_FILENO).value_or(80);
  const std::uint64_t all = all_, done = std::min<std::uint64_t>(done_, all);
  if (all == 0) {
    const std::string time = fmt::format(" {} s", since_begin.count());
    return label_.substr(0, columns - std::min(columns, time.size() + 1)) + time;
  }
  const std::size_t room = columns - std::min(columns, kBesides);
  const std::size_t bar = std::min(kBar, room / 2), full = bar * done / all;
  return fmt::format("{} [{:#<{}}{:.<{}}] {:3} %", label_.substr(0, room - bar), "", full, "",
                     bar - full, 100 * done / all);
}

void ProgressBar::draw_until_done() {
  const auto begin = std::chrono::steady_clock::now();
  bool drawn = false;
  std::unique_lock lock(mutex_);
  while (!finished_.wait_for(lock, drawn ? kBetween : kBefore, [this] { return is_finished_; })) {
    const auto since = std::chrono::steady_clock::now() - begin;
    fmt::print(stderr, "{}{}", kErase,
               line(std::chrono::duration_cast<std::chrono::seconds>(since)));
    std::fflush(stderr);
    drawn = true;
  }
  if (drawn) fmt::print(stderr, "{}", kErase);
}

}  // namespace weir
