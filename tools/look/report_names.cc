// SPDX-License-Identifier: Apache-2.0
#include "look/report_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

namespace weir {
namespace {

constexpr std::size_t kFramesInLine = 3;

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

std::string frame_text(const RecordedFrame& frame) {
  const std::string file = frame.file.substr(frame.file.find_last_of('/') + 1);
  if (frame.function.empty() && file.empty()) return "?";
  if (file.empty()) return frame.function;
  const std::string place = frame.line == 0 ? file : fmt::format("{}:{}", file, frame.line);
  return frame.function.empty() ? place : fmt::format("{} ({})", frame.function, place);
}

std::vector<std::string> stack_text(const Recording& recording, std::uint32_t stack) {
  std::vector<std::string> text;
  if (stack >= recording.stacks.size()) return text;
  for (const std::uint32_t frame : recording.stacks[stack]) {
    text.push_back(frame < recording.frames.size() ? frame_text(recording.frames[frame]) : "?");
  }
  return text;
}

std::string place_text(const std::vector<std::string>& frames) {
  if (frames.empty()) return "unknown";
  std::string text = frames.front();
  for (std::size_t i = 1; i < std::min(frames.size(), kFramesInLine); ++i) {
    // Who calls main() says nothing.
    if (frames[i - 1] == "main" || frames[i - 1].starts_with("main (")) break;
    text += " < " + frames[i];
  }
  return text;
}

}  // namespace weir
