// SPDX-License-Identifier: Apache-2.0
// A picture of one program: what was live, as an area, and what each allocator held, as lines.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "look/output_file.h"
#include "look/svg_parts.h"
#include "replay/units.h"
#include "suite/suite.h"

namespace weir::suite {
namespace {

constexpr double kWidth = 1180, kHeight = 520;
constexpr double kLeft = 100, kRight = 260, kTop = 60, kBottom = 60;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
// A line above this many times the most that was live would flatten the others: what is above is
// not shown, and the line runs along the upper edge.
constexpr double kHighest = 2.5;
constexpr double kOverHighest = 1.06;  // room above the highest line
// Colours that those who see few colours can tell apart (Okabe, Ito: Color universal design).
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
constexpr const char* kLive = "#ccc";

class Picture {
 public:
  Picture(const SuiteResult& result, std::size_t row)
      : result_(result), row_(row), program_(result.programs[row]) {
    const auto live = static_cast<double>(program_.needs.peak_live.count);
    double highest = live;
    for (std::size_t column = 0; column < result.allocators.size(); ++column) {
      highest = std::max(highest, static_cast<double>(result.outcome(row, column).peak_held));
    }
    height_ = std::max(std::min(highest, kHighest * live) * kOverHighest, 1.0);
  }

  std::string text() const {
    std::string out =
        svg_begin(kWidth, kHeight, fmt::format("{}: {}", program_.name, program_.title));
    out += names() + grid();
    out += fmt::format("<path d=\"M{:.1f} {:.1f}{}V{:.1f}Z\" fill=\"{}\"/>\n", kLeft, y(0),
                       steps(live_columns(program_)), y(0), kLive);
    // The first one last, so that no other covers it.
    for (std::size_t column = result_.allocators.size(); column-- > 0;) {
      const Outcome& outcome = result_.outcome(row_, column);
      if (!outcome.failure.empty()) continue;
      out += fmt::format(
          "<path d=\"M{:.1f} {:.1f}{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\">"
          "<title>{}</title></path>\n",
          kLeft, y(0), steps(outcome.held), colour(column), xml(outcome.allocator));
    }
    return out + "</svg>\n";
  }

 private:
  static const char* colour(std::size_t column) { return kColours[column % kColours.size()]; }
  double y(double bytes) const {
    return kHeight - kBottom - std::min(bytes / height_, 1.0) * kPlotHeight;
  }

  // A column beside the plot: of each allocator its peak over that of what was live.
  std::string names() const {
    std::vector<std::pair<std::string, std::string>> names = {
        {fmt::format("live, {} at most", in_words(program_.needs.peak_live)), kLive}};
    for (std::size_t column = 0; column < result_.allocators.size(); ++column) {
      const Outcome& outcome = result_.outcome(row_, column);
      const bool is_above = static_cast<double>(outcome.peak_held) > height_;
      const std::string held = outcome.failure.empty() ? fmt::format("{:.3f}{}", outcome.ratio,
                                                                     is_above ? " (above)" : "")
                                                       : "failed";
      names.emplace_back(fmt::format("{}: {}", outcome.allocator, held), colour(column));
    }
    constexpr double kColumn = kWidth - kRight + 20;
    return legend(kColumn, kTop + 12, /*right=*/kColumn, names);
  }

  std::string grid() const {
    std::string out;
    const auto most = static_cast<std::uint64_t>(height_);
    const std::uint64_t step = binary_step(most, 8);
    for (std::uint64_t bytes = 0; bytes <= most; bytes += step) {
      const double at = y(static_cast<double>(bytes));
      out += fmt::format(
          "<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#ddd\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
          kLeft, at, kWidth - kRight, kLeft - 8, at + 5, in_words(Bytes{bytes}));
    }
    const std::int64_t length = std::max<std::int64_t>(program_.end_us * 1000, 1);
    const std::int64_t tick = decimal_step(length, 8);
    for (std::int64_t time = 0; time <= length; time += tick) {
      const double at =
          kLeft + static_cast<double>(time) / static_cast<double>(length) * kPlotWidth;
      out += fmt::format(
          "<path d=\"M{:.1f} {:.1f}v6\" stroke=\"#000\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
          at, kHeight - kBottom, at, kHeight - kBottom + 24, in_words(Nanoseconds{time}));
    }
    return out + fmt::format(
                     "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">time of the "
                     "program</text>\n",
                     kLeft + kPlotWidth / 2, kHeight - 12);
  }

  // From the left end on, a step a column.
  std::string steps(const std::vector<std::uint64_t>& columns) const {
    std::string path;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      path += fmt::format(
          "V{:.1f}H{:.1f}", y(static_cast<double>(columns[i])),
          kLeft + kPlotWidth * static_cast<double>(i + 1) / static_cast<double>(columns.size()));
    }
    return path;
  }

  const SuiteResult& result_;
  const std::size_t row_;
  const Program& program_;
  double height_;  // in bytes
};

std::string file_name(const Program& program, std::set<std::string>& taken) {
  std::string name = program.family.empty() ? program.name : program.family;
  for (char& c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (!is_plain) c = '_';
  }
  std::string unique = name;
  for (int number = 2; !taken.insert(unique).second; ++number) {
    unique = fmt::format("{}-{}", name, number);
  }
  return unique + ".svg";
}

// Of a program that has no picture, as its family has one: empty.
std::vector<std::string> files_by_program(const std::vector<Program>& programs,
                                          const std::string& folder) {
  std::vector<std::string> files;
  std::set<std::string> families, taken;
  for (const Program& program : programs) {
    const bool has_one = program.family.empty() || families.insert(program.family).second;
    files.push_back(has_one ? std::filesystem::path(folder) / file_name(program, taken) : "");
  }
  return files;
}

}  // namespace

std::vector<std::string> picture_files(const std::vector<Program>& programs,
                                       const std::string& folder) {
  std::vector<std::string> files = files_by_program(programs, folder);
  std::erase(files, "");
  return files;
}

Status prepare_pictures(const std::vector<Program>& programs, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (error) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: can't be made: {}", folder, error.message()));
  }
  for (const std::string& path : picture_files(programs, folder)) {
    const Result<OutputFile> file = OutputFile::open(path, "");  // nothing is left of it
    if (!file) return file.error();
  }
  return {};
}

Status write_suite_pictures(const SuiteResult& result, const std::string& folder) {
  const std::vector<std::string> files = files_by_program(result.programs, folder);
  for (std::size_t row = 0; row < files.size(); ++row) {
    if (files[row].empty()) continue;
    Result<OutputFile> file = OutputFile::open(files[row], "");
    if (!file) return std::move(file).error();
    file->text() += Picture(result, row).text();
    if (Status written = file->commit(); !written) return written;
  }
  return {};
}

}  // namespace weir::suite
