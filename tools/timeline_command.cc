#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "command.h"
#include "look/export.h"
#include "look/load.h"
#include "look_command.h"

namespace weir {
namespace {

struct TimelineCommand {
  std::string file, output;
  LookFormat format = LookFormat::perfetto;
};

Status run(const TimelineCommand& command) {
  const Result<Recording> recording = load(command.file);
  if (!recording.ok()) return recording.error();
  warn_of_damage(command.file, recording->damage);
  return export_timeline(*recording, command.format, command.output);
}

constexpr const char* kFooter = R"(
FILE is a recording, a trace (replayed on the simulated GPU first), or a snapshot of Weir's or
PyTorch's. A name OUT that ends with .gz is compressed.

  memory_viz  for https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py: OUT.pickle, or JSON
  perfetto    for https://ui.perfetto.dev
  csv         a row for each block
  svg         memory over time, as a picture

Examples:
  weir timeline run.weir --to perfetto -o run.perfetto
  weir timeline bench/traces/gnn.trace.gz --to memory_viz -o gnn.pickle

Exit codes: 0 all is well; 1 this machine lacks something; 2 a bad file or command line.)";

}  // namespace

void add_timeline_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<TimelineCommand>();
  CLI::App* timeline = app.add_subcommand(
      "timeline", "Write what happened over time for a viewer, a spreadsheet or a page");
  timeline->add_option("FILE", command->file, "What to look at")->required();
  const std::map<std::string, LookFormat> formats = {{"memory_viz", LookFormat::memory_viz},
                                                     {"perfetto", LookFormat::perfetto},
                                                     {"csv", LookFormat::csv},
                                                     {"svg", LookFormat::svg}};
  timeline
      ->add_option_function<std::string>(
          "--to",
          [command, formats](const std::string& name) { command->format = formats.at(name); },
          "The format")
      ->check(CLI::IsMember({"memory_viz", "perfetto", "csv", "svg"}))
      ->type_name("memory_viz|perfetto|csv|svg")
      ->required();
  timeline->add_option("-o,--output", command->output, "The file to write")
      ->type_name("OUT")
      ->required();
  timeline->footer(kFooter);
  timeline->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
