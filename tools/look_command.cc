// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "command.h"
#include "grammar.h"
#include "look/html.h"
#include "look/input_file.h"
#include "look/report.h"
#include "option_checks.h"
#include "replay/report_table.h"

namespace weir {
namespace {

constexpr std::size_t kSentences = 3;  // of the verdict

struct LookCommand {
  std::string file;
  std::optional<int> device;
  Paths paths = Paths::cut;
  bool no_open = false;
};

// A new name in the folder for temporary files. The page stays: a browser reads it later.
// Without spaces, as the name is copied into command lines.
std::string temporary_page(const std::string& source) {
  std::random_device random;
  std::string name = std::filesystem::path(source).filename().string();
  std::ranges::replace(name, ' ', '-');
  return fmt::format("{}/weir-look-{:08x}{:08x}-{}.html", temporary_folder(), random(), random(),
                     name);
}

// Without one xdg-open finds no browser but those of a terminal, and they show nothing here.
bool has_display() {
  return std::ranges::any_of(std::array{"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}, [](auto name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  });
}

// False: the opener failed. One that still runs after a while is the browser itself: nobody waits
// for it.
bool succeeds_or_runs_on(pid_t opener) {
  constexpr std::chrono::milliseconds kPause{10};
  constexpr int kPauses = 200;
  for (int i = 0; i < kPauses; ++i) {
    int status = 0;
    if (const pid_t ended = ::waitpid(opener, &status, WNOHANG); ended != 0) {
      return ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

bool opens_in_browser(std::string page) {
  if (!has_display()) return false;
  std::string opener = "xdg-open";
  std::array<char*, 3> arguments = {opener.data(), page.data(), nullptr};
  // Where it finds no browser, each that it looked for would be a line of its own.
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    ::posix_spawn_file_actions_addopen(&actions, output, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = 0;
  const int spawned =
      ::posix_spawnp(&child, opener.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return spawned == 0 && succeeds_or_runs_on(child);
}

// Opens the page of `shown`, whose report is given, in a browser; of none, the empty page.
Status open_page(const LookCommand& command, const std::string& name,
                 std::span<const Loaded* const> shown, const Report* report = nullptr) {
  if (::access(temporary_folder().c_str(), W_OK | X_OK) != 0) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: no page can be made in it: {}; set TMPDIR to another folder",
                             temporary_folder(), std::strerror(errno)));
  }
  const std::string page = temporary_page(name);
  const mode_t before = ::umask(0077);  // the folder is everybody's
  Status written = write_html(page, shown, command.paths, report);
  ::umask(before);
  if (!written) return written;
  const bool opens = !command.no_open && opens_in_browser(page);
  if (!opens && !command.no_open) fmt::print("No browser opened. ");
  fmt::print("{}: {}\n", opens ? "Opening in a browser" : "Open this page in a browser",
             printable(page));
  if (!opens && !shown.empty()) {
    fmt::print("To keep a page: weir timeline FILE --to html -o PAGE.html\n");
  }
  return {};
}

Status run(const LookCommand& command) {
  if (command.file.empty()) return open_page(command, "weir", {});
  if (Status allowed = check_names({{"FILE", command.file}}, {}); !allowed) return allowed;
  const Result<Loaded> recording = load_shown(command.file, command.device, true);
  if (!recording) return recording.error();
  const Report report = report_of(*recording, {}, recording->origin);
  const std::vector<std::string> verdict = verdict_of(report);
  for (std::size_t i = 0; i < std::min(kSentences, verdict.size()); ++i) {
    fmt::print("{}\n", wrapped(printable(verdict[i]), 0));
  }
  const Loaded* const shown[] = {&*recording};
  if (Status opened = open_page(command, recording->source, shown, &report); !opened) return opened;
  return damage_status(recording->source, recording->damage);
}

constexpr const char* kLookFooter = R"(
FILE is what `weir timeline` takes. The page stays in the folder for temporary files (TMPDIR), and
only this user may read it; xdg-open opens it. `weir timeline FILE --to html -o PAGE.html` makes it
elsewhere.

Examples:
  weir look snapshot.pickle
  weir look bench/traces/gnn.trace.gz --no-open

docs/command.md says what all commands have in common. Exit codes: 0 done; 2 a bad command line; 3 a
file that can't be read or written, or a page without D3 (docs/look.md).)";

}  // namespace

void add_look_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<LookCommand>();
  CLI::App* look = app.add_subcommand(
      "look", "Say in a few sentences what a file shows of a program's memory, and open its page");
  add_input(*look, "FILE", command->file,
            "What to look at; -: standard input; none: a page that reads the file dropped on it")
      ->required(false);
  add_device_option(*look, command->device);
  add_paths_option(*look, command->paths);
  look->add_flag("--no-open", command->no_open, "Make the page, and open no browser");
  look->footer(kLookFooter);
  look->callback([command, &exit_code] { exit_code = exit_code_of(run(*command)); });
}

}  // namespace weir
