// SPDX-License-Identifier: Apache-2.0
#include "look/svg_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "look/plain_writer.h"

namespace weir {

std::string xml(std::string_view text) {
  std::string safe;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

std::string innermost(const Recording& recording, std::uint32_t stack) {
  if (recording.stacks[stack].empty()) return "";
  const RecordedFrame& frame = recording.frames[recording.stacks[stack].front()];
  return fmt::format("{} ({}:{})", frame.function, frame.file, frame.line);
}

std::string title_of(const Recording& recording) {
  if (!recording.program.empty()) return recording.program;
  return recording.source.substr(recording.source.find_last_of('/') + 1);
}

std::int64_t decimal_step(std::int64_t range, int most) {
  for (std::int64_t ten = 1;; ten *= 10) {
    for (const std::int64_t factor : {1, 2, 5}) {
      const std::int64_t step = ten * factor;
      if (range / step <= most || step > INT64_MAX / 20) return step;
    }
  }
}

std::uint64_t binary_step(std::uint64_t range, int most) {
  std::uint64_t step = 1;
  while (range / step > static_cast<std::uint64_t>(most)) step *= 2;
  return step;
}

std::string svg_begin(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"14\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n"
      "<text x=\"20\" y=\"30\" font-size=\"20\">{2}</text>\n",
      width, height, xml(title));
}

std::string legend(double x, double y, double right,
                   const std::vector<std::pair<std::string, std::string>>& names) {
  constexpr std::size_t kLongest = 40;
  constexpr double kLine = 20;
  const double left = x;
  std::string out;
  for (const auto& [name, colour] : names) {
    const std::string text = name.size() > kLongest ? name.substr(0, kLongest - 3) + "..." : name;
    const double width = 44 + 7.6 * static_cast<double>(text.size());
    if (x > left && x + width > right) x = left, y += kLine;
    out += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"14\" fill=\"{}\"/>"
        "<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n",
        x, y - 12, colour, x + 20, y, xml(text));
    x += width;
  }
  return out;
}

}  // namespace weir
