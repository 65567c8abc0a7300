#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm_ranks_options.h"
#include "command.h"
#include "look/output_file.h"
#include "look_command.h"
#include "weir/comm/check.h"
#include "weir/comm/launch.h"

namespace weir {
namespace {

struct CheckCommand {
  std::string root = "/", json;
};

// As NCCL finds it: HOME is not looked at.
std::string home_of_user() {
  const passwd* user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "";
}

// The JSON may not replace what the check has read.
Status check_files_of(const CheckCommand& command, const Check& check) {
  if (command.json.empty() || command.json == "-") return {};
  std::vector<NamedFile> inputs = named_nccl_library();
  for (const std::string& file : check.settings.files) {
    const std::string path = command.root == "/" ? file : command.root + "/" + file;
    inputs.push_back({"the configuration file", path});
  }
  return check_files(inputs, {{"--json", command.json}});
}

Status write(const std::string& path, const std::string& text) {
  Result<OutputFile> file = OutputFile::open(path, "");
  if (!file) return file.error();
  file->text() = text;
  return file->commit();
}

ExitCode run(const CheckCommand& command) {
  struct stat status {};
  if (::stat(command.root.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    fmt::print(stderr, "weir: --root: {}: there is no such folder\n", command.root);
    return ExitCode::bad_input;
  }
  if (::access(command.root.c_str(), R_OK | X_OK) != 0) {
    fmt::print(stderr, "weir: --root: {}: you may not read that folder\n", command.root);
    return ExitCode::bad_input;
  }
  const EnvironmentVariables environment = environment_of(environ);
  const std::string nccl = process_environment().get("WEIR_NCCL_LIBRARY").value_or("libnccl.so.2");
  // The library of this machine says nothing of another.
  const bool here = command.root == "/";
  Check check;
  check.machine = read_machine(command.root, here ? nccl : "");
  check.settings = read_settings(command.root, environment, home_of_user());
  check.findings = examine(check.machine, check.settings);
  const ExitCode allowed = exit_code_of(check_files_of(command, check));
  if (allowed != ExitCode::ok) return allowed;
  if (command.json == "-") {
    fmt::print("{}", check_json(check));
  } else {
    fmt::print("{}", check_text(check));
    if (!command.json.empty()) {
      const ExitCode written = exit_code_of(write(command.json, check_json(check)));
      if (written != ExitCode::ok) return written;
    }
  }
  return has_error(check.findings) ? ExitCode::failed : ExitCode::ok;
}

constexpr const char* kFooter = R"(
Examples:
  weir comm check
  weir comm check --json - | jq '.findings[] | select(.severity == "error")'
  NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=eth weir comm check

docs/comm-check.md explains each line and each finding, and names the tools that tell the rest. Exit
codes: 0 all is well, or warnings and notes only; 1 an error was found; 2 a bad command line.)";

}  // namespace

void add_comm_command(CLI::App& app, ExitCode& exit_code) {
  CLI::App* comm = app.add_subcommand("comm", "Communication between GPUs: NCCL and its settings");
  comm->require_subcommand(1);

  auto command = std::make_shared<CheckCommand>();
  CLI::App* check = comm->add_subcommand(
      "check", "Settings of NCCL in force, and what breaks captures or RDMA in silence");
  add_json_option(*check, command->json);
  check->add_option("--root", command->root, "Look at a machine's files below this folder")
      ->type_name("FOLDER")
      ->capture_default_str();
  check->footer(kFooter);
  check->callback([command, &exit_code] { exit_code = run(*command); });
  add_comm_bench_command(*comm, exit_code);
  add_comm_scenario_command(*comm, exit_code);
}

std::vector<std::string> with_empty_json_apart(std::vector<std::string> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != "--json=") continue;
    arguments[i] = "--json";
    arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, "");
  }
  return arguments;
}

}  // namespace weir
