// SPDX-License-Identifier: Apache-2.0
#include "look/report_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

namespace weir {
namespace {

constexpr std::size_t kCallsInLine = 3;

std::string power_in_words(Bytes bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t value = bytes.count;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{} {}", value, kUnits[unit]);
}

}  // namespace

std::string pool_name(std::uint64_t pool) { return pool == 0 ? "none" : fmt::format("{}", pool); }

Bytes size_class(Bytes bytes) {
  if (bytes <= kGrain) return kGrain;
  constexpr Bytes kLargest{std::uint64_t{1} << 63};
  return bytes > kLargest ? kLargest : Bytes{std::bit_ceil(bytes.count)};
}

std::string size_class_name(Bytes largest) {
  if (largest <= kGrain) return "up to 512 B";
  const std::string from = power_in_words(largest / 2), to = power_in_words(largest);
  // "1 - 2 MiB", but "512 KiB - 1 MiB".
  const std::size_t unit = from.find(' ');
  const bool same_unit = to.ends_with(from.substr(unit));
  return fmt::format("{} - {}", same_unit ? from.substr(0, unit) : from, to);
}

std::string place_text(const std::vector<std::string>& calls) {
  if (calls.empty()) return "unknown";
  std::string text = calls.front();
  for (std::size_t i = 1; i < std::min(calls.size(), kCallsInLine); ++i) {
    // Who calls main() says nothing.
    if (calls[i - 1] == "main" || calls[i - 1].starts_with("main (")) break;
    text += " < " + calls[i];
  }
  return text;
}

}  // namespace weir
