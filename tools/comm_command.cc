// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "comm_check.h"
#include "comm_ranks_options.h"
#include "command.h"
#include "weir/comm/launch.h"

namespace weir {
namespace {

struct CheckCommand {
  std::string root = "/";
  ResultOptions result;
};

// As NCCL finds it: HOME is not looked at.
std::string home_of_user() {
  const passwd* user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "";
}

// What the result may not replace.
std::vector<NamedFile> files_read(const CheckCommand& command, const Check& check) {
  std::vector<NamedFile> inputs = named_nccl_library();
  for (const std::string& file : check.files) {
    const std::string path = command.root == "/" ? file : command.root + "/" + file;
    inputs.push_back({"the configuration file", path});
  }
  return inputs;
}

ExitCode run(const CheckCommand& command) {
  struct stat status {};
  if (::stat(command.root.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    complain(fmt::format("--root: {}: there is no such folder", command.root));
    return ExitCode::cannot_run;
  }
  if (::access(command.root.c_str(), R_OK | X_OK) != 0) {
    complain(fmt::format("--root: {}: you may not read that folder", command.root));
    return ExitCode::cannot_run;
  }
  const Check check = check_machine(command.root, process_environment(), home_of_user());
  Result<ResultOutput> output = ResultOutput::open(command.result, files_read(command, check));
  if (!output) return exit_code_of(output.error());
  const Status written = output->write(check_text(check), [&check] { return check_json(check); });
  if (!written) return exit_code_of(written);
  return check.has_error() ? ExitCode::answer_is_no : ExitCode::ok;
}

constexpr const char* kCommFooter = R"(
Examples:
  weir comm check
  weir comm check --json | jq '.findings[] | select(.severity == "error")'
  NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=eth weir comm check

docs/comm.md explains each finding, and names the tools that tell the rest.
docs/command.md says what all commands have in common. Exit codes: 0 all is well, or warnings
only; 1 an error was found; 2 a bad command line; 3 a file that can't be read or written.)";

}  // namespace

void add_comm_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App* comm = app.add_subcommand("comm", "Communication between GPUs: NCCL and its settings");
  comm->require_subcommand(1);

  auto command = std::make_shared<CheckCommand>();
  CLI::App* check = comm->add_subcommand(
      "check", "Settings of NCCL in force, and what breaks captures or RDMA in silence");
  add_result_options(*check, command->result);
  check->add_option("--root", command->root, "Look at a machine's files below this folder")
      ->type_name("FOLDER")
      ->capture_default_str();
  check->footer(kCommFooter);
  check->callback([command, &exit_code] { exit_code = run(*command); });
  add_comm_bench_command(*comm, exit_code);
  add_comm_scenario_command(*comm, exit_code);
}

}  // namespace weir
