#include "comm/check/layout.h"

#include <algorithm>
#include <sstream>

namespace weir::check {
namespace {

constexpr std::size_t kWidestCell = 32;

std::string cut(std::string text, std::size_t width) {
  if (text.size() <= width) return text;
  return text.substr(0, width - std::min<std::size_t>(width, 3)) + "...";
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown(text);
  for (char& c : shown) {
    if (c < 0x20 || c == 0x7F) c = '?';  // a char is signed or not: what is beyond ASCII is either
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return shown;
}

std::string paragraph(std::string_view head, std::string_view text, std::size_t indent) {
  std::string lines(head);
  lines.resize(std::max(lines.size(), indent), ' ');
  std::size_t column = lines.size();
  std::istringstream words(printable(text));
  std::string word;
  bool first = true;
  while (words >> word) {
    if (!first && column + 1 + word.size() > kWidth) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      lines += ' ';
      ++column;
    }
    while (column + word.size() > kWidth) {
      const std::size_t room = kWidth - column;
      lines += word.substr(0, room) + '\n' + std::string(indent, ' ');
      word.erase(0, room);
      column = indent;
    }
    lines += word;
    column += word.size();
    first = false;
  }
  return lines + '\n';
}

std::string table(std::vector<std::vector<std::string>> rows) {
  std::vector<std::size_t> widths;
  for (auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = printable(row[i]);
      if (i + 1 < row.size()) row[i] = cut(row[i], kWidestCell);
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += "  " + row[i] + std::string(widths[i] - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += cut(std::move(line), kWidth) + '\n';
  }
  return text;
}

}  // namespace weir::check
