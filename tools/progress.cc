#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace weir {
namespace {
constexpr std::chrono::milliseconds kBetween{100};
constexpr std::uint64_t kWidth = 30;
constexpr const char* kErase = "\r\033[K";
}  // namespace

ProgressBar::ProgressBar(std::string label, bool wanted)
    : label_(std::move(label)), shown_(wanted && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) fmt::print(stderr, "{}", kErase);
}

void ProgressBar::update(std::uint64_t done, std::uint64_t all) {
  if (!shown_ || all == 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kBetween;
  const std::uint64_t full = kWidth * done / all;
  fmt::print(stderr, "{}{} [{:#<{}}{:.<{}}] {:3} %", kErase, label_, "", full, "", kWidth - full,
             100 * done / all);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace weir
