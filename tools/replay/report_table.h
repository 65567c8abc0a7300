// SPDX-License-Identifier: Apache-2.0
// Aligned columns of text, for reports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weir/types.h"

namespace weir {

// The most columns that a report's lines have: 100, unless a terminal has fewer.
std::size_t report_width();
// The program's own: call it before a report is made. Kept between 40 and 100.
void set_report_width(std::size_t columns);

// Columns whose width is that of their widest cell. A table that would be wider than the report
// has its widest left-aligned column cut.
class ReportTable {
 public:
  // One letter a column: `l` left-aligned, `n` also never cut, `r` right-aligned. The first row is
  // the heading.
  explicit ReportTable(std::string_view alignment) : alignment_(alignment) {}
  void add(std::vector<std::string> row);
  bool empty() const { return rows_.size() <= 1; }
  // Each line indented by two, without spaces at its end.
  std::string text() const;

 private:
  std::vector<std::size_t> widths() const;
  const std::string alignment_;
  std::vector<std::vector<std::string>> rows_;
};

// Characters (of UTF-8) in `text`.
std::size_t width_of(std::string_view text);
// `text` with what a terminal would obey (line ends, escapes) replaced by `?`: names come from
// files and programs.
std::string printable(std::string_view text);
// `text`, broken at spaces into lines of at most `width`, each but the first indented.
std::string wrapped(const std::string& text, std::size_t indent,
                    std::size_t width = report_width());
// "12.3 %" of `whole`; "-" where either is zero.
std::string percent(double part, double whole);
std::string percent(Bytes part, Bytes whole);

}  // namespace weir
