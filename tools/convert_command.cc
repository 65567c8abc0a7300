// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "grammar.h"
#include "look/export.h"
#include "option_checks.h"

namespace weir {
namespace {

struct ConvertCommand {
  std::string file, output;
  std::optional<int> device;
};

Status run(const ConvertCommand& command) {
  if (Status allowed = check_names({{"FILE", command.file}}, {{"-o", command.output}}); !allowed) {
    return allowed;
  }
  ProgressBar bar("converting " + command.file, true);
  LoadOptions options{.device = command.device};
  options.progress = [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); };
  const Result<std::string> left_out = convert_to_trace(command.file, command.output, options);
  if (!left_out) return left_out.error();
  if (!left_out->empty()) complain(command.file + ": left out of the trace: " + *left_out);
  return {};
}

constexpr const char* kConvertFooter = R"(
FILE is a recording, a memory snapshot that PyTorch pickled with its history
(torch.cuda.memory._record_memory_history, _dump_snapshot), or a log of RMM's (RMM_LOG_FILE). The
trace is compressed if its name ends with .gz; `weir replay` runs it.

Examples:
  weir convert run.weir -o run.trace.gz
  weir convert snapshot.pickle -o program.trace
  weir convert run.weir -o - | weir report -

docs/command.md says what all commands have in common. Exit codes: 0 done; 2 a bad command line; 3 a
file that can't be read or written.)";

}  // namespace

void add_convert_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<ConvertCommand>();
  CLI::App* convert = app.add_subcommand(
      "convert", "Write a recording, a PyTorch snapshot or an RMM log as a trace");
  add_input(*convert, "FILE", command->file, "What to convert; -: standard input");
  add_device_option(*convert, command->device);
  convert->add_option("--to", "The format: there is one")
      ->check(one_of({"trace"}))
      ->type_name("trace");
  add_file_output(*convert, command->output);
  convert->footer(kConvertFooter);
  convert->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
