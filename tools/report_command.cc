// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "grammar.h"
#include "look/export.h"
#include "look/load.h"
#include "look/report.h"
#include "option_checks.h"

namespace weir {
namespace {

struct ReportCommand {
  std::string file, at;
  std::optional<int> device;
  ResultOptions result;
  ReportOptions options;
};

ReportStyle style_of(const ReportCommand& command) {
  const bool shown = command.result.output.empty() && ::isatty(STDOUT_FILENO) == 1 &&
                     std::getenv("NO_COLOR") == nullptr;
  return shown ? ReportStyle::terminal : ReportStyle::plain;
}

Status run(ReportCommand command) {
  Result<ResultOutput> output = ResultOutput::open(command.result, {{"FILE", command.file}});
  if (!output) return output.error();
  const Result<Loaded> recording = load_shown(command.file, command.device, true);
  if (!recording) return recording.error();
  if (!command.at.empty()) {
    const Result<std::size_t> at = parse_moment(command.at, *recording);
    if (!at) return Error(at.error().code(), "--at: " + at.error().message());
    command.options.at = *at;
  }
  const Report report = report_of(*recording, command.options, recording->origin);
  Status written = output->write(report_text(report, style_of(command)),
                                 [&report] { return report_json(report); });
  return written ? damage_status(report.source, report.damage) : std::move(written);
}

constexpr const char* kReportFooter = R"(
Examples:
  weir report bench/traces/gnn.trace.gz
  weir report --at 1.5s --top 20 run.weir
  weir report --json run.weir | jq .peak_reserved.fragmentation
  zcat run.trace.gz | weir report -o report.txt --json=report.json -

docs/report.md defines every number, docs/command.md what all commands have in common. Exit codes: 0
done; 2 a bad command line; 3 a file that can't be read or written.)";

}  // namespace

void add_report_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<ReportCommand>();
  CLI::App* report = app.add_subcommand(
      "report", "Say what made a program's peak of memory, what was held for nothing, and why");
  add_input(*report, "FILE", command->file,
            "A recording, a snapshot of Weir's or PyTorch's, or a trace; -: standard input");
  add_device_option(*report, command->device);
  add_result_options(*report, command->result);
  add_top_option(*report, command->options.top);
  report
      ->add_option("--at", command->at,
                   "Look at this moment too; TIME: since the beginning (1.5s, 200ms, 300us)")
      ->transform(not_empty())
      ->type_name("begin|end|peak-live|peak-reserved|TIME");
  report->footer(kReportFooter);
  report->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
