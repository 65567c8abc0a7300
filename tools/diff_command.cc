#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "command.h"
#include "look/diff.h"
#include "look/load.h"
#include "look/report.h"
#include "option_checks.h"
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

ExitCode run(const DiffCommand& command) {
  const Status allowed = check_files({{"BEFORE", command.before}, {"AFTER", command.after}}, {});
  if (!allowed) {
    fmt::print(stderr, "weir: {}\n", allowed.error().message());
    return ExitCode::bad_input;
  }
  const Result<Report> before = report_on(command.before);
  const Result<Report> after = before ? report_on(command.after) : before;
  if (!after) {
    fmt::print(stderr, "weir: {}\n", after.error().message());
    return ExitCode::bad_input;
  }
  const Diff diff = diff_of(*before, *after);
  fmt::print("{}", command.json ? diff_json(diff) : diff_text(diff, command.top));
  return ExitCode::ok;
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
  diff->add_option("--top", command->top, "Most rows of a list")
      ->transform(whole_number(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  diff->footer(kFooter);
  diff->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
