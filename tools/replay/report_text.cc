// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "replay/report.h"
#include "replay/report_table.h"
#include "replay/units.h"
#include "weir/config.h"

namespace weir {
namespace {

double percent_in_driver(const ReplayFigures& figures) {
  if (figures.trace_time.count == 0) return 0;
  return 100 * static_cast<double>(figures.driver_time.count) /
         static_cast<double>(figures.trace_time.count);
}

std::vector<std::string> row(std::string name, const ReplayReport& report,
                             const ReplayFigures& figures) {
  return {std::move(name),
          in_words(report.peak_live),
          in_words(figures.peak_reserved),
          fmt::format("{:.4f}", report.ratio(figures)),
          in_words(figures.driver_time),
          fmt::format("{:.2f} %", percent_in_driver(figures)),
          with_commas(figures.calls(DeviceCall::create)),
          with_commas(figures.calls(DeviceCall::map)),
          with_commas(figures.stream_waits),
          with_commas(figures.host_waits),
          figures.races ? with_commas(*figures.races) : "-"};
}

std::string verdict(const ReplayReport& report) {
  if (report.failure) {
    const std::uint32_t line = report.failure->line;
    return fmt::format("It ended early, in pass {}{}.", report.failure->pass,
                       line > 0 ? fmt::format(" at line {} of the trace", line) : "");
  }
  const double more = 100 * (report.ratio(report.all) - 1);
  std::string text = fmt::format(
      "Weir held at most {:.2f} % more memory than the program itself had in use, and spent {:.2f} "
      "% "
      "of the program's time in the driver.",
      std::max(more, 0.0), percent_in_driver(report.all));
  text += report.all.host_waits == 0
              ? " The host never waited"
              : fmt::format(" The host waited {}", counted(report.all.host_waits, "time"));
  if (report.graphs > 0) {
    text += fmt::format("; {} captured into one pool",
                        counted(report.graphs, "graph") + (report.graphs == 1 ? " was" : " were"));
  }
  if (!report.all.races) return text + "; nobody looked for races.";
  return text + (*report.all.races == 0
                     ? ", and no use of memory raced with another."
                     : fmt::format(", and {} with another: a bug in Weir.",
                                   *report.all.races == 1
                                       ? "one use of memory RACED"
                                       : with_commas(*report.all.races) + " uses of memory RACED"));
}

}  // namespace

std::string report_text(const ReplayReport& report) {
  const std::string title = fmt::format(
      "{} on {}: {} on {}, {} of recorded time, policy {}, {}", printable(report.trace),
      report.device == "sim" ? "the simulated device" : report.device,
      counted(report.blocks, "block"), counted(report.streams, "stream"),
      in_words(report.trace_time), name_of(report.options.policy),
      report.options.limit == 0_B ? "no limit" : "limit " + in_words(report.options.limit));
  ReportTable table("rrrrrrrrrrr");
  table.add({"pass", "peak live", "peak reserved", "ratio", "driver time", "of run", "creates",
             "maps", "stream waits", "host waits", "races"});
  for (std::size_t i = 0; i < report.passes.size(); ++i) {
    table.add(row(std::to_string(i + 1), report, report.passes[i]));
  }
  if (report.passes.size() > 1) table.add(row("all", report, report.all));
  return wrapped(title, 0) + "\n\n" + table.text() + "\n" + wrapped(verdict(report), 0) + "\n";
}

ExitCode ReplayOutcome::exit_code() const {
  if (!report) return exit_code_of(error->code());
  if (report->failure) {
    return report->failure->kind == ReplayFailure::Kind::device ? ExitCode::cannot_run
                                                                : ExitCode::answer_is_no;
  }
  return report->all.races.value_or(0) == 0 ? ExitCode::ok : ExitCode::answer_is_no;
}

std::string ReplayOutcome::complaint() const {
  if (!report) return error->message();
  if (const std::optional<ReplayFailure>& failure = report->failure) {
    std::string text = fmt::format("{}{}: in pass {}: {}", trace,
                                   failure->line > 0 ? fmt::format(":{}", failure->line) : "",
                                   failure->pass, failure->message);
    for (const std::string& line : failure->held) text += "\n  " + line;
    return text;
  }
  if (exit_code() == ExitCode::ok) return {};
  return fmt::format("{}: {} on {}{}", trace, counted(*report->all.races, "race"), report->device,
                     report->first_race.empty() ? "" : ", the first: " + report->first_race);
}

}  // namespace weir
