// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "command.h"
#include "grammar.h"
#include "look/export.h"
#include "option_checks.h"

namespace weir {
namespace {

struct SnapshotCommand {
  std::string file, output;
  std::string at = "end";
  InputOptions input;
  LookFormat format = LookFormat::memory_viz;
  Paths paths = Paths::cut;
};

Status run(const SnapshotCommand& command) {
  if (Status allowed = check_names({{"FILE", command.file}}, {{"-o", command.output}}); !allowed) {
    return allowed;
  }
  const Result<Loaded> recording = load_shown(command.file, command.input);
  if (!recording.ok()) return recording.error();
  const Result<std::size_t> events = parse_moment(command.at, *recording);
  if (!events.ok()) return Error(events.error().code(), "--at: " + events.error().message());
  Status written = export_snapshot(*recording, *events, command.format, command.output,
                                   command.paths, recording->origin);
  return written ? damage_status(recording->source, recording->damage) : std::move(written);
}

constexpr const char* kSnapshotFooter = R"(
FILE is what `weir timeline` takes. A snapshot has its own moment: then --at is not needed.

  memory_viz  for https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py: FILE.pickle, or JSON
  csv         a row for each live block

Examples:
  weir snapshot bench/traces/gnn.trace.gz --at peak-reserved --to csv -o gnn.csv
  weir snapshot run.weir --at 1.5s --to memory_viz -o run.pickle

docs/command.md says what all commands have in common. Exit codes: 0 done; 2 a bad command line; 3 a
file that can't be read or written.)";

}  // namespace

void add_snapshot_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<SnapshotCommand>();
  CLI::App* snapshot = app.add_subcommand(
      "snapshot", "Write what memory held at one moment for a viewer, a spreadsheet or a page");
  add_input(*snapshot, "FILE", command->file, "What to look at; -: standard input");
  add_input_options(*snapshot, command->input);
  add_choice<LookFormat>(*snapshot, "--to", command->format,
                         {{"memory_viz", LookFormat::memory_viz}, {"csv", LookFormat::csv}},
                         "The format", one_of({"memory_viz", "csv"}))
      ->required();
  snapshot
      ->add_option("--at", command->at, "The moment; TIME: since the beginning (1.5s, 20ms, 300us)")
      ->type_name("begin|end|peak-live|peak-reserved|TIME")
      ->capture_default_str();
  add_paths_option(*snapshot, command->paths);
  add_file_output(*snapshot, command->output);
  snapshot->footer(kSnapshotFooter);
  snapshot->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
