// SPDX-License-Identifier: Apache-2.0
#include "replay/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace weir {

std::string three_digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string in_words(Bytes bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1_KiB) return fmt::format("{} B", bytes.count);
  double value = static_cast<double>(bytes.count) / 1024;
  std::size_t unit = 0;
  for (; value >= 1023.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string in_words(Nanoseconds time) {
  constexpr std::array kUnits = {"us", "ms", "s"};
  if (std::abs(time.count) < 1000) return fmt::format("{} ns", time.count);
  double value = static_cast<double>(time.count) / 1000;
  std::size_t unit = 0;
  for (; std::abs(value) >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

double ratio(Bytes part, Bytes whole) {
  return whole == 0_B ? 0 : static_cast<double>(part.count) / static_cast<double>(whole.count);
}

std::string with_commas(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::uint64_t number, const char* what) {
  return fmt::format("{} {}{}", with_commas(number), what, number == 1 ? "" : "s");
}

}  // namespace weir
