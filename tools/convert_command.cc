#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "look/export.h"
#include "look_command.h"
#include "option_checks.h"
#include "replay/named_files.h"

namespace weir {
namespace {

struct ConvertCommand {
  std::string file, output;
  std::optional<int> device;
};

Status run(const ConvertCommand& command) {
  if (Status allowed = check_files({{"FILE", command.file}}, {{"-o", command.output}}); !allowed) {
    return allowed;
  }
  return convert_to_trace(command.file, command.output, command.device);
}

constexpr const char* kFooter = R"(
FILE is a recording, or a memory snapshot that PyTorch pickled with its history
(torch.cuda.memory._record_memory_history, _dump_snapshot). OUT is compressed if its name ends with
.gz; `weir replay` runs it.

Examples:
  weir convert run.weir -o run.trace.gz
  weir convert snapshot.pickle -o program.trace

Exit codes: 0 all is well; 1 this machine lacks something; 2 a bad file or command line.)";

}  // namespace

void add_convert_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<ConvertCommand>();
  CLI::App* convert =
      app.add_subcommand("convert", "Write a recording or a PyTorch snapshot as a trace");
  convert->add_option("FILE", command->file, "What to convert")->required();
  add_output_option(*convert, command->output, "The trace to write");
  convert
      ->add_option("--device", command->device,
                   "Of a PyTorch snapshot: the device; default: the one with the longest history")
      ->transform(whole_number(0, 1023))
      ->type_name("N");
  convert->footer(kFooter);
  convert->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
