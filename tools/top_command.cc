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
#include "look/top.h"
#include "look_command.h"
#include "option_checks.h"
#include "replay/named_files.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

struct TopCommand {
  std::string what;
  double interval = 1;
  std::uint64_t count = 0;  // looks; zero: until the recording ends
  bool once = false;
  std::size_t top = 10;
};

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

bool is_gone(const std::string& what) {
  return is_number(what) && ::access(("/proc/" + what).c_str(), F_OK) != 0;
}

Result<TopFollower> open(const std::string& what) {
  if (!is_number(what)) {
    if (Status allowed = check_files({{"PID|FILE", what}}, {}); !allowed) return allowed.error();
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

// A terminal is drawn over, anything else appended to.
void show(const std::string& text, bool first) {
  if (::isatty(STDOUT_FILENO) != 0) {
    fmt::print("\x1b[H\x1b[J{}", text);
  } else {
    fmt::print("{}{}", first ? "" : "\n", text);
  }
  std::fflush(stdout);
}

ExitCode run(const TopCommand& command) {
  Result<TopFollower> opened = open(command.what);
  if (!opened.ok()) return exit_code_of(opened.error());
  TopFollower& follower = *opened;
  const std::uint64_t looks = command.once ? 1 : command.count;
  std::optional<TopNumbers> before;
  Clock::time_point then = Clock::now();
  for (std::uint64_t look = 1;; ++look) {
    const Clock::time_point now = Clock::now();
    const Nanoseconds interval{std::chrono::nanoseconds(now - then).count()};
    show(top_text(follower.view(), follower.numbers(), before ? &*before : nullptr, interval,
                  command.top),
         look == 1);
    if (look == looks || follower.view().ended || std::ferror(stdout) != 0) return ExitCode::ok;
    before = follower.numbers();
    then = now;
    std::this_thread::sleep_until(now + std::chrono::duration<double>(command.interval));
    const bool gone = is_gone(command.what);
    if (Status status = follower.poll(); !status) return exit_code_of(status);
    // What it had written last has been read by then.
    if (gone && !follower.view().ended) {
      fmt::print(stderr, "weir: process {} has ended, and its recording was not closed\n",
                 command.what);
      return ExitCode::ok;
    }
  }
}

constexpr const char* kFooter = R"(
Examples:
  weir top 12345
  weir top --once run.weir
  weir top --interval 5 --count 12 12345 >minute.txt

A program records when WEIR_RECORD=FILE is set; with WEIR_RECORD_SIGNAL=USR1 too it begins when it
gets that signal. Exit codes: 0 all is well; 1 no such process, or no permission; 2 nothing is
recorded, a bad file or command line.)";

}  // namespace

void add_top_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<TopCommand>();
  CLI::App* top = app.add_subcommand(
      "top", "Show a running program's memory, from the recording that it writes");
  top->add_option("PID|FILE", command->what, "A process that records, or a recording")->required();
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
  top->footer(kFooter);
  top->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
