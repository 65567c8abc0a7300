// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "replay/report_table.h"
#include "replay/units.h"
#include "suite/suite.h"

namespace weir::suite {
namespace {

std::string count_text(const std::optional<std::uint64_t>& count) {
  return count ? with_commas(*count) : "-";
}

std::string nanoseconds_text(double ns) {
  return in_words(Nanoseconds{static_cast<std::int64_t>(ns)});
}

std::vector<std::string> row_of(const Outcome& outcome) {
  if (!outcome.failure.empty()) return {outcome.allocator, "failed", "", "", "", "", "", ""};
  return {outcome.allocator,
          in_words(Bytes{outcome.peak_held}),
          fmt::format("{:.4f}", outcome.ratio),
          fmt::format("{:.4f}", outcome.weighted_ratio),
          count_text(outcome.driver_calls),
          count_text(outcome.waits),
          outcome.host ? nanoseconds_text(outcome.host->median_ns_per_pair) : "-",
          outcome.host ? nanoseconds_text(outcome.host->slowest_call_us * 1000) : "-"};
}

std::string program_text(const SuiteResult& result, std::size_t row) {
  const Program& program = result.programs[row];
  std::string text =
      wrapped(fmt::format("{}: {}; {} calls; {} live at most, lower bound {}",
                          printable(program.name), program.title, with_commas(program.calls.size()),
                          in_words(program.needs.peak_live), in_words(program.needs.lower_bound)),
              2);
  text += "\n";
  ReportTable table("lrrrrrrr");
  table.add(
      {"allocator", "held", "ratio", "over time", "driver calls", "waits", "a pair", "slowest"});
  std::string failures;
  for (std::size_t column = 0; column < result.allocators.size(); ++column) {
    const Outcome& outcome = result.outcome(row, column);
    table.add(row_of(outcome));
    if (outcome.failure.empty()) continue;
    failures +=
        wrapped(fmt::format("  {}: {}", outcome.allocator, printable(outcome.failure)), 4) + "\n";
  }
  return text + table.text() + failures;
}

std::string summary_text(const SuiteResult& result) {
  ReportTable table("lrrrlr");
  table.add({"allocator", "programs", "mean ratio", "worst", "in", "failed"});
  for (std::size_t column = 0; column < result.allocators.size(); ++column) {
    double sum = 0;
    std::size_t count = 0;
    const Outcome* worst = nullptr;
    for (std::size_t row = 0; row < result.programs.size(); ++row) {
      const Outcome& outcome = result.outcome(row, column);
      if (!outcome.failure.empty()) continue;
      sum += outcome.ratio;
      ++count;
      if (worst == nullptr || outcome.ratio > worst->ratio) worst = &outcome;
    }
    table.add({result.allocators[column].name, std::to_string(count),
               count > 0 ? fmt::format("{:.4f}", sum / static_cast<double>(count)) : "-",
               worst != nullptr ? fmt::format("{:.4f}", worst->ratio) : "-",
               worst != nullptr ? printable(worst->program) : "",
               std::to_string(result.programs.size() - count)});
  }
  return fmt::format("All {} programs\n", result.programs.size()) + table.text();
}

}  // namespace

std::string suite_text(const SuiteResult& result) {
  std::string text;
  for (std::size_t row = 0; row < result.programs.size(); ++row) {
    text += program_text(result, row) + "\n";
  }
  return text + summary_text(result);
}

}  // namespace weir::suite
