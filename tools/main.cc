// SPDX-License-Identifier: Apache-2.0
// The `weir` command.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "command.h"
#include "grammar.h"
#include "replay/report_table.h"
#include "standard_output.h"
#include "terminal.h"
#include "unknown_argument.h"

namespace {

// `weir help [COMMAND]` as `weir [COMMAND] --help`, `weir version` as `weir --version`.
void understand_help(std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"version"}) arguments.front() = "--version";
  if (arguments.empty()) arguments.emplace_back("help");
  if (arguments.front() != "help") return;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
}

// CLI11 takes what follows "--output=" for its value, even where that is a file to be read.
std::string empty_option(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    const std::size_t equals = argument.find('=');
    if (argument.starts_with("--") && equals + 1 == argument.size()) {
      return argument.substr(0, equals);
    }
  }
  return {};
}

// What a report could not be written to (a full disk, a closed pipe) is only known in the end. Says
// so, unless the command has said it.
weir::ExitCode with_output_written(weir::ExitCode exit_code) {
  if (weir::standard_output_written() || exit_code == weir::ExitCode::cannot_run) return exit_code;
  weir::complain("standard output could not be written");
  return exit_code == weir::ExitCode::ok ? weir::ExitCode::cannot_run : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  weir::occupy_closed_streams();
  if (const auto columns = weir::columns_of(STDOUT_FILENO)) weir::set_report_width(*columns);
  weir::ExitCode exit_code = weir::ExitCode::ok;
  CLI::App app("weir: what a CUDA program does with memory, replayed through Weir's allocator",
               "weir");
  app.set_version_flag("--version", "weir " WEIR_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  app.failure_message(weir::failure_text);
  app.formatter(weir::make_formatter());  // sub-commands inherit it
  app.footer(
      "`weir help COMMAND` describes a command. docs/command.md says what all have in common, "
      "exit codes too: 0 done; 1 the answer is no; 2 a bad command line; 3 a file that can't be "
      "read or written, or something that this machine lacks.");
  weir::add_look_command(app, exit_code);
  weir::add_replay_command(app, exit_code);
  weir::add_report_command(app, exit_code);
  weir::add_diff_command(app, exit_code);
  weir::add_timeline_command(app, exit_code);
  weir::add_convert_command(app, exit_code);
  weir::add_fit_command(app, exit_code);
  weir::add_bench_command(app, exit_code);
#ifdef WEIR_COMM_COMMAND
  weir::add_comm_command(app, exit_code);
#else
  app.add_subcommand("comm", "(not in this build: `tools/run test`, or -DWEIR_COMM_COMMAND=ON)")
      ->prefix_command()
      ->callback([&exit_code] {
        weir::complain(
            "weir comm is not in this build: run tools/run test, or configure with "
            "-DWEIR_COMM_COMMAND=ON");
        exit_code = weir::ExitCode::cannot_run;
      });
#endif

  std::vector<std::string> arguments(argv + 1, argv + argc);
  understand_help(arguments);
  weir::accept_equals_after_o(arguments);
  if (const std::string option = empty_option(arguments); !option.empty()) {
    std::fprintf(stderr, "%s: the value is empty: give one, or leave the option out\n",
                 option.c_str());
    return static_cast<int>(weir::ExitCode::bad_usage);
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp& help) {
    const bool all_known = app.remaining(true).empty();  // not so in `weir help repaly`
    if (all_known) {
      app.exit(help);
      return static_cast<int>(with_output_written(weir::ExitCode::ok));
    }
    std::fprintf(stderr, "%s\n", weir::unknown_argument(app).c_str());
    return static_cast<int>(weir::ExitCode::bad_usage);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes tell the kinds of mistake apart; here they are all the caller's.
    const bool is_version = app.exit(error) == 0;
    return static_cast<int>(
        with_output_written(is_version ? weir::ExitCode::ok : weir::ExitCode::bad_usage));
  } catch (const std::bad_alloc&) {
    std::fputs(
        "weir: this machine has not enough memory for that file: some 150 bytes are needed for "
        "each "
        "event of a recording. Record a shorter time, or less of it with WEIR_RECORD_RING\n",
        stderr);
    return static_cast<int>(weir::ExitCode::cannot_run);
  } catch (const std::system_error& error) {  // fmt, where nothing can be printed
    std::fprintf(stderr, "weir: standard output could not be written: %s\n", error.what());
    return static_cast<int>(weir::ExitCode::cannot_run);
  }
  return static_cast<int>(with_output_written(exit_code));
}
