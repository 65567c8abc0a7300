// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "command.h"
#include "grammar.h"
#include "look/top.h"
#include "option_checks.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

struct TopCommand {
  std::string what;
  double interval = 1;
  std::uint64_t count = 0;  // looks; zero: until the recording ends
  bool once = false;
  std::size_t top = 10;
  ResultOptions result;
};

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

bool is_gone(const std::string& what) {
  return is_number(what) && ::access(("/proc/" + what).c_str(), F_OK) != 0;
}

Result<TopFollower> open(const std::string& what) {
  if (!is_number(what)) {
    return TopFollower::open(what);
  }
  const Result<std::vector<std::string>> files = recordings_of_process(what);
  if (!files.ok()) return files.error();
  if (files->size() > 1) {
    std::string others;
    for (const std::string& file : *files) others += "\n  " + file;
    fmt::print(stderr, "weir: process {} writes {} recordings; this is the first of{}\n", what,
               files->size(), others);
  }
  return TopFollower::open(files->front(), "process " + what);
}

// A terminal is drawn over, anything else appended to. JSON is one line a look.
Status show(ResultOutput& output, const TopCommand& command, const TopFollower& follower,
            const std::string& text, bool first) {
  const bool drawn_over = command.result.output.empty() && ::isatty(STDOUT_FILENO) != 0;
  const char* const before = drawn_over ? "\x1b[H\x1b[J" : first ? "" : "\n";
  Status shown = output.text(before + text);
  if (shown && output.wants_json()) {
    shown = output.json(top_json(follower.view(), follower.numbers()));
  }
  return shown;
}

Status check(const TopCommand& command) {
  if (command.what == "-") {
    return Error(ErrorCode::invalid_argument,
                 "PID|FILE: a recording is followed in its file, not on standard input: name it");
  }
  std::vector<NamedFile> inputs;
  if (!is_number(command.what)) inputs.push_back({"PID|FILE", command.what});
  return check_names(inputs, named_outputs(command.result));
}

// The end of the result, and of the command.
ExitCode finish(ResultOutput& output, const TopView& view) {
  const Status finished = output.finish();
  if (!finished || !view.damaged_at) return exit_code_of(finished);
  return exit_code_of(
      Error(ErrorCode::invalid_input,
            fmt::format("{}: the file is damaged from byte {} on; the rest was read: record again",
                        view.file, *view.damaged_at)));
}

ExitCode run(const TopCommand& command) {
  if (const Status allowed = check(command); !allowed) return exit_code_of(allowed);
  Result<ResultOutput> output = ResultOutput::open(command.result);
  if (!output) return exit_code_of(output.error());
  Result<TopFollower> opened = open(command.what);
  if (!opened.ok()) return exit_code_of(opened.error());
  TopFollower& follower = *opened;
  const std::uint64_t looks = command.once ? 1 : command.count;
  std::optional<TopNumbers> before;
  Clock::time_point then = Clock::now();
  for (std::uint64_t look = 1;; ++look) {
    const Clock::time_point now = Clock::now();
    const Nanoseconds interval{std::chrono::nanoseconds(now - then).count()};
    const std::string text = top_text(follower.view(), follower.numbers(),
                                      before ? &*before : nullptr, interval, command.top);
    if (Status shown = show(*output, command, follower, text, look == 1); !shown) {
      return exit_code_of(shown);
    }
    if (look == looks || follower.view().ended) return finish(*output, follower.view());
    before = follower.numbers();
    then = now;
    std::this_thread::sleep_until(now + std::chrono::duration<double>(command.interval));
    const bool gone = is_gone(command.what);
    if (Status status = follower.poll(); !status) return exit_code_of(status);
    // What it had written last has been read by then.
    if (gone && !follower.view().ended) {
      fmt::print(stderr, "weir: process {} has ended, and its recording was not closed\n",
                 command.what);
      return finish(*output, follower.view());
    }
  }
}

constexpr const char* kTopFooter = R"(
Examples:
  weir top 12345
  weir top --once run.weir
  weir top --interval 5 --count 12 12345 >minute.txt

A program records when WEIR_RECORD=FILE is set; with WEIR_RECORD_SIGNAL=USR1 too it begins when it
gets that signal. docs/command.md says what all commands have in common. Exit codes: 0 done; 2 a bad
command line, or a process that records nothing; 3 a file that can't be read or written, no such
process, or no permission to look at it.)";

}  // namespace

void add_top_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<TopCommand>();
  CLI::App* top = app.add_subcommand(
      "top", "Show a running program's memory, from the recording that it writes");
  add_input(*top, "PID|FILE", command->what, "A process that records, or a recording");
  add_result_options(*top, command->result);
  top->add_option("--interval", command->interval, "Time between two looks")
      ->transform(real_number(0.05, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
  top->add_option("--count", command->count,
                  "Stop after so many looks; default: when the recording ends")
      ->transform(whole_number(1, 1'000'000'000))
      ->type_name("N");
  top->add_flag("--once", command->once, "Look once");
  add_top_option(*top, command->top);
  top->footer(kTopFooter);
  top->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
