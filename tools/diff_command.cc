#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "command.h"
#include "look/diff.h"
#include "look/load.h"
#include "look/report.h"
#include "look_command.h"
#include "replay/named_files.h"

namespace weir {
namespace {

struct DiffCommand {
  std::string before, after;
  bool json = false;
  std::size_t top = 8;
};

Result<Report> report_on(const std::string& file) {
  const Result<Recording> recording = load(file);
  if (!recording) return recording.error();
  return report_of(*recording, {.top = SIZE_MAX});
}

Status run(const DiffCommand& command) {
  Status allowed = check_files({{"BEFORE", command.before}, {"AFTER", command.after}}, {});
  if (!allowed) return allowed;
  const Result<Report> before = report_on(command.before);
  const Result<Report> after = before ? report_on(command.after) : before;
  if (!after) return after.error();
  const Diff diff = diff_of(*before, *after);
  fmt::print("{}", command.json ? diff_json(diff) : diff_text(diff, command.top));
  return {};
}

constexpr const char* kFooter = R"(
Examples:
  weir diff before.weir after.weir
  weir diff --json monday.weir tuesday.weir

docs/report.md says what is compared with what. Exit codes: 0 all is well, whether or not anything
changed; 2 a bad file or command line.)";

}  // namespace

void add_diff_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<DiffCommand>();
  CLI::App* diff =
      app.add_subcommand("diff", "Say what changed in memory and waits between two recordings");
  diff->add_option("BEFORE", command->before, "A recording, a snapshot or a trace")->required();
  diff->add_option("AFTER", command->after, "Another")->required();
  diff->add_flag("--json", command->json, "Print JSON instead of text");
  add_top_option(*diff, command->top);
  diff->footer(kFooter);
  diff->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
