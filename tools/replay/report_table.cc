// SPDX-License-Identifier: Apache-2.0
#include "replay/report_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace weir {
namespace {

constexpr std::size_t kNarrowest = 16;  // a column is not cut below this

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string cut(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return text;
  std::size_t end = 0;
  for (std::size_t seen = 0; end < text.size(); ++end) {
    if (!continues(text[end]) && ++seen + 3 > width) break;
  }
  return text.substr(0, end) + "...";
}

// `text` as cut() has it; where another of `rows` would look the same, with what tells them apart.
std::string cut_apart(const std::string& text, std::size_t width, std::size_t column,
                      const std::vector<std::vector<std::string>>& rows) {
  const std::string plain = cut(text, width);
  std::size_t same = 0;  // bytes that `text` begins with, as another does that looks like it
  for (const auto& row : rows) {
    const std::string& other = row[column];
    if (other == text || cut(other, width) != plain) continue;
    same = std::max<std::size_t>(same, std::ranges::mismatch(text, other).in1 - text.begin());
  }
  if (same == 0) return plain;
  const std::string begin = cut(text, width / 3);
  const std::size_t call = text.rfind("< ", same);
  while (continues(text[same])) --same;
  if (call != std::string::npos && same - call < width / 2) same = call + 2;
  return begin + cut(text.substr(same), width - width_of(begin));
}

constexpr std::size_t kLeastWidth = 40, kMostWidth = 100;
std::size_t columns_of_reports = kMostWidth;

}  // namespace

std::size_t report_width() { return columns_of_reports; }

void set_report_width(std::size_t columns) {
  columns_of_reports = std::clamp(columns, kLeastWidth, kMostWidth);
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

std::string printable(std::string_view text) {
  std::string shown(text);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return shown;
}

std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
  std::istringstream words(text);
  std::string lines, word;
  std::size_t column = 0;
  while (words >> word) {
    if (column > 0 && indent + column + 1 + width_of(word) > width) {
      lines += '\n' + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += width_of(word);
  }
  return lines;
}

std::string percent(Bytes part, Bytes whole) {
  return percent(static_cast<double>(part.count), static_cast<double>(whole.count));
}

std::string percent(double part, double whole) {
  if (part == 0 || whole == 0) return "-";
  const double value = 100 * part / whole;
  if (value < 0.005) return "<0.01 %";
  return fmt::format("{:.{}f} %", value, value < 9.995 ? 2 : 1);
}

void ReportTable::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cell);
  row.resize(alignment_.size());
  rows_.push_back(std::move(row));
}

std::vector<std::size_t> ReportTable::widths() const {
  std::vector<std::size_t> widths(alignment_.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::size_t all = 0, widest = alignment_.size();
  for (std::size_t i = 0; i < widths.size(); ++i) {
    all += 2 + widths[i];
    if (alignment_[i] != 'l') continue;
    if (widest == alignment_.size() || widths[i] > widths[widest]) widest = i;
  }
  if (all > report_width() && widest < alignment_.size()) {
    const std::size_t over = all - report_width();
    std::size_t& width = widths[widest];
    width = std::max(std::min(width, kNarrowest), width - std::min(width, over));
  }
  return widths;
}

std::string ReportTable::text() const {
  const std::vector<std::size_t> widths = this->widths();
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string cell = cut_apart(row[i], widths[i], i, rows_);
      const std::string space(widths[i] - std::min(widths[i], width_of(cell)), ' ');
      line += "  " + (alignment_[i] != 'r' ? cell + space : space + cell);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace weir
