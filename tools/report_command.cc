#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "look/export.h"
#include "look/load.h"
#include "look/report.h"
#include "look_command.h"
#include "option_checks.h"
#include "replay/named_files.h"

namespace weir {
namespace {

struct ReportCommand {
  std::string file, at;
  bool json = false;
  ReportOptions options;
};

Status run(ReportCommand command) {
  if (Status allowed = check_files({{"FILE", command.file}}, {}); !allowed) return allowed;
  const Result<Recording> recording = load(command.file);
  if (!recording) return recording.error();
  if (!command.at.empty()) {
    const Result<std::size_t> at = parse_moment(command.at, *recording);
    if (!at) return Error(at.error().code(), "--at: " + at.error().message());
    command.options.at = *at;
  }
  const Report report = report_of(*recording, command.options);
  fmt::print("{}", command.json ? report_json(report) : report_text(report, command.options));
  return {};
}

constexpr const char* kFooter = R"(
Examples:
  weir report bench/traces/gnn.trace.gz
  weir report --at 1.5s --top 20 run.weir
  weir report --json run.weir | jq .peak_reserved.fragmentation

docs/report.md defines every number. Exit codes: 0 all is well; 2 a bad file or command line.)";

}  // namespace

void add_report_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<ReportCommand>();
  CLI::App* report = app.add_subcommand(
      "report", "Say what made a program's peak of memory, what was held for nothing, and why");
  report->add_option("FILE", command->file, "A recording, a snapshot or a trace")->required();
  report->add_flag("--json", command->json, "Print JSON instead of text");
  add_top_option(*report, command->options.top);
  report
      ->add_option(
          "--at", command->at,
          "Look at this moment too: a time since the beginning (1.5s, 200ms, 300us), begin, "
          "end, peak-live or peak-reserved")
      ->transform(not_empty())
      ->type_name("MOMENT");
  report->footer(kFooter);
  report->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
