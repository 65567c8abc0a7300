// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "grammar.h"
#include "look/export.h"
#include "look/html.h"
#include "option_checks.h"

namespace weir {
namespace {

struct TimelineCommand {
  std::vector<std::string> files;
  std::string output, at;
  std::optional<int> device;
  std::optional<LookFormat> format;  // none: a page
  Paths paths = Paths::cut;
};

Status run(const TimelineCommand& command) {
  if (command.format && command.files.size() > 1) {
    return Error(ErrorCode::invalid_argument,
                 "two files are shown side by side by --to html only: name one");
  }
  if (!command.at.empty() && (!command.format || *command.format == LookFormat::perfetto)) {
    return Error(ErrorCode::invalid_argument,
                 "--at: html and perfetto show time, and a moment has none: use memory_viz or csv");
  }
  std::vector<NamedFile> inputs;
  for (const std::string& file : command.files) inputs.push_back({"FILE", file});
  if (Status allowed = check_names(inputs, {{"-o", command.output}}); !allowed) return allowed;
  std::vector<Loaded> recordings;
  recordings.reserve(command.files.size());
  for (const std::string& file : command.files) {
    Result<Loaded> recording = load_shown(file, command.device, !command.format);
    if (!recording.ok()) return std::move(recording).error();
    recordings.push_back(*std::move(recording));
  }
  if (!command.at.empty()) {
    Loaded& whole = recordings.front();
    const Result<std::size_t> events = parse_moment(command.at, whole);
    if (!events) return Error(events.error().code(), "--at: " + events.error().message());
    static_cast<Recording&>(whole) = moment_of(whole, *events);
  }
  const ProgressBar bar("writing " + command.output, true);
  std::vector<const Loaded*> shown;
  shown.reserve(recordings.size());
  for (const Loaded& recording : recordings) shown.push_back(&recording);
  Status status = command.format
                      ? export_timeline(recordings.front(), *command.format, command.output,
                                        command.paths, recordings.front().origin)
                      : write_html(command.output, shown, command.paths);
  for (const Loaded& recording : recordings) {
    if (status) status = damage_status(recording.source, recording.damage);
  }
  return status;
}

constexpr const char* kTimelineFooter = R"(
FILE is a recording, a trace (replayed on the simulated GPU first), or a snapshot of Weir's or
PyTorch's. A file whose name ends with .gz is compressed.

  memory_viz  for https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py: FILE.pickle, or JSON
  perfetto    for https://ui.perfetto.dev
  csv         a row for each block
  html        a page to look at in a browser; of two FILEs, both side by side

With --at it is what memory held at one moment.

Examples:
  weir timeline run.weir --to perfetto -o run.perfetto
  weir timeline bench/traces/gnn.trace.gz --to memory_viz -o gnn.pickle
  weir timeline run.weir --at peak-live --to csv -o peak.csv
  weir timeline before.weir after.weir --to html -o compared.html

docs/command.md says what all commands have in common. Exit codes: 0 done; 2 a bad command line; 3 a
file that can't be read or written, or a page without D3 (docs/look.md).)";

}  // namespace

void add_timeline_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<TimelineCommand>();
  CLI::App* timeline = app.add_subcommand(
      "timeline", "Write what happened over time for a viewer, a spreadsheet or a page");
  timeline->add_option("FILE", command->files, "What to look at; -: standard input")
      ->required()
      ->expected(1, 2)
      ->transform(not_empty());
  add_device_option(*timeline, command->device);
  add_choice<std::optional<LookFormat>>(*timeline, "--to", command->format,
                                        {{"memory_viz", LookFormat::memory_viz},
                                         {"perfetto", LookFormat::perfetto},
                                         {"csv", LookFormat::csv},
                                         {"html", std::nullopt}},
                                        "The format",
                                        one_of({"memory_viz", "perfetto", "csv", "html"}))
      ->required();
  timeline
      ->add_option("--at", command->at,
                   "This moment alone; TIME: since the beginning (1.5s, 20ms, 300us)")
      ->transform(not_empty())
      ->type_name("begin|end|peak-live|peak-reserved|TIME");
  add_paths_option(*timeline, command->paths);
  add_file_output(*timeline, command->output);
  timeline->footer(kTimelineFooter);
  timeline->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
