// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "grammar.h"
#include "look/diff.h"
#include "look/report.h"

namespace weir {
namespace {

struct DiffCommand {
  std::string before, after;
  std::optional<int> device;
  ResultOptions result;
  std::size_t top = 8;
  bool only_calls = false;
};

Report report_on(const Loaded& recording) {
  return report_of(recording, {.top = SIZE_MAX}, recording.origin);
}

Diff diff_of(const Loaded& before, const Loaded& after, bool only_calls) {
  Diff diff{before.source, after.source, {}, {}};
  if (!only_calls) diff = diff_of(report_on(before), report_on(after));
  diff.calls = first_difference(before, after);
  return diff;
}

Status run(const DiffCommand& command) {
  Result<ResultOutput> output =
      ResultOutput::open(command.result, {{"BEFORE", command.before}, {"AFTER", command.after}});
  if (!output) return output.error();
  const Result<Loaded> before = load_shown(command.before, command.device);
  if (!before) return before.error();
  const Result<Loaded> after = load_shown(command.after, command.device);
  if (!after) return after.error();
  const Diff diff = diff_of(*before, *after, command.only_calls);
  Status status = output->write(diff_text(diff, command.top), [&diff] { return diff_json(diff); });
  for (const Loaded* file : {&*before, &*after}) {
    if (status) status = damage_status(file->source, file->damage);
  }
  return status;
}

constexpr const char* kDiffFooter = R"(
Examples:
  weir diff before.weir after.weir
  weir diff --json monday.weir tuesday.weir
  weir diff --calls rank0.weir rank3.weir

docs/report.md says what is compared with what, docs/command.md what all commands have in common.
Exit codes: 0 done, whether or not anything changed; 2 a bad command line; 3 a file that can't be
read or written.)";

}  // namespace

void add_diff_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<DiffCommand>();
  CLI::App* diff = app.add_subcommand(
      "diff",
      "Say which call differs first between two recordings, and what changed in memory and waits");
  add_input(*diff, "BEFORE", command->before,
            "A recording, a snapshot or a trace; -: standard input");
  add_input(*diff, "AFTER", command->after, "Another");
  add_device_option(*diff, command->device);
  add_result_options(*diff, command->result);
  add_top_option(*diff, command->top);
  diff->add_flag("--calls", command->only_calls, "Say only which call differs first");
  diff->footer(kDiffFooter);
  diff->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
