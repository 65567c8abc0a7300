// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "grammar.h"
#include "option_checks.h"
#include "suite/generated_programs.h"
#include "suite/suite.h"
#include "suite/trace_program.h"

namespace weir {
namespace {

constexpr const char* kAll = "all";

struct SuiteCommand {
  std::vector<std::string> traces, allocators, families;
  std::vector<std::uint64_t> seeds;
  std::vector<const CLI::Option*> of_generated;  // the options that only those programs have
  bench::HistoryLength length = suite::kSuiteLength;
  bool memory_only = false;
  std::int64_t timeout_s = suite::SuiteOptions().timeout.count();
  ResultOptions result;
};

bool has_generated_programs(const SuiteCommand& command) {
  return !command.families.empty() || command.traces.empty();
}

// An option that would mean nothing is an error.
Status check_used(const SuiteCommand& command) {
  if (has_generated_programs(command)) return {};
  for (const CLI::Option* const option : command.of_generated) {
    if (option->count() == 0) continue;
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: it applies to generated programs only, and none is named: leave {} out, "
                    "or add --family",
                    option->get_name(), option->get_name()));
  }
  return {};
}

// Those in a folder, in order of their names; anything else, as it is.
Result<std::vector<std::string>> files_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    // (A link that leads nowhere is no file. Markdown begins as a trace may, with '#'.)
    if (std::error_code gone; !entry.is_regular_file(gone)) continue;
    if (entry.path().extension() == ".md") continue;
    const Result<FileKind> kind = kind_of_file(entry.path());
    const bool is_program = kind && *kind != FileKind::json && *kind != FileKind::other;
    if (is_program) files.push_back(entry.path());
  }
  if (error) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: {}", path, error.message()));
  }
  if (files.empty()) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: no file in this folder is a trace, an RMM log, a recording or a "
                             "snapshot of PyTorch's",
                             path));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The files that hold programs, those in folders too.
Result<std::vector<std::string>> traces_of(const SuiteCommand& command) {
  std::vector<std::string> traces;
  for (const std::string& path : command.traces) {
    const Result<std::vector<std::string>> files = files_of(path);
    if (!files) return files.error();
    traces.insert(traces.end(), files->begin(), files->end());
  }
  return traces;
}

// A file that can't be read is told, and sets `unread`: the others stand for themselves.
std::vector<suite::Program> programs_of(const SuiteCommand& command,
                                        const std::vector<std::string>& traces, ExitCode& unread) {
  std::vector<suite::Program> programs;
  std::map<std::string, int> names;
  for (const std::string& file : traces) {
    const ProgressBar bar("reading " + file, true);
    Result<suite::Program> program = suite::read_program(file);
    if (!program) {
      unread = exit_code_of(program.error());
      continue;
    }
    const int same = ++names[program->name];
    if (same > 1) program->name += fmt::format("#{}", same);
    programs.push_back(*std::move(program));
  }
  if (!has_generated_programs(command)) return programs;
  const bool all = command.families.empty() ||
                   std::ranges::find(command.families, kAll) != command.families.end();
  const std::set<std::string> chosen(command.families.begin(), command.families.end());
  const std::set<std::uint64_t> seeds(command.seeds.begin(), command.seeds.end());
  for (const suite::GeneratedFamily& family : suite::generated_families()) {
    if (!all && !chosen.contains(family.name)) continue;
    if (seeds.empty()) programs.push_back(suite::generate(family, 1, command.length));
    for (const std::uint64_t seed : seeds) {
      programs.push_back(suite::generate(family, seed, command.length));
    }
  }
  return programs;
}

Result<std::vector<suite::ChosenAllocator>> allocators_of(const SuiteCommand& command) {
  std::vector<suite::ChosenAllocator> chosen;
  if (command.allocators.empty()) {
    for (const suite::AllocatorKind& kind : suite::built_in_allocators()) {
      chosen.push_back({kind.name, kind.title, &kind, ""});
    }
    return chosen;
  }
  for (const std::string& name : command.allocators) {
    Result<suite::ChosenAllocator> allocator =
        suite::choose_allocator(name, std::chrono::seconds(command.timeout_s));
    if (!allocator) return std::move(allocator).error();
    const bool is_new = std::ranges::none_of(
        chosen, [&](const suite::ChosenAllocator& each) { return each.name == allocator->name; });
    if (!is_new) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("--allocator: two are called '{}'", allocator->name));
    }
    chosen.push_back(*std::move(allocator));
  }
  return chosen;
}

ExitCode run(const SuiteCommand& command) {
  if (const Status used = check_used(command); !used) return exit_code_of(used);
  const Result<std::vector<std::string>> traces = traces_of(command);
  if (!traces) return exit_code_of(traces.error());
  std::vector<NamedFile> inputs;
  for (const std::string& path : *traces) inputs.push_back({"TRACE", path});
  for (const std::string& name : command.allocators) {
    if (suite::is_library(name)) inputs.push_back({"--allocator", name});
  }
  Result<ResultOutput> output = ResultOutput::open(command.result, std::move(inputs));
  if (!output) return exit_code_of(output.error());
  Result<std::vector<suite::ChosenAllocator>> allocators = allocators_of(command);
  if (!allocators) return exit_code_of(allocators.error());
  ExitCode unread = ExitCode::ok;
  std::vector<suite::Program> programs = programs_of(command, *traces, unread);
  if (programs.empty()) return unread;

  suite::SuiteOptions options;
  options.host_time = !command.memory_only;
  options.timeout = std::chrono::seconds(command.timeout_s);
  // The bar's thread must not be there where a process is forked.
  std::optional<ProgressBar> bar;
  const bool forks = std::ranges::any_of(
      *allocators, [](const suite::ChosenAllocator& each) { return each.built_in == nullptr; });
  if (!forks) {
    bar.emplace("measuring", true);
    options.progress = [&bar](std::uint64_t done, std::uint64_t all) { bar->update(done, all); };
  }
  const Result<suite::SuiteResult> result =
      run_suite(std::move(programs), *std::move(allocators), options);
  bar.reset();
  if (!result) return exit_code_of(result.error());
  const Status written = output->write(suite_text(*result), [&] { return suite_json(*result); });
  if (!written) return exit_code_of(written);
  return result->any_failed() ? ExitCode::answer_is_no : unread;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names = {kAll};
  for (const suite::GeneratedFamily& family : suite::generated_families()) {
    names.push_back(family.name);
  }
  return names;
}

CLI::Validator an_allocator() {
  std::vector<std::string> names;
  for (const suite::AllocatorKind& kind : suite::built_in_allocators()) names.push_back(kind.name);
  const auto check = [known = one_of(std::move(names))](std::string& name) -> std::string {
    return suite::is_library(name) ? "" : known(name);
  };
  return {check, ""};
}

// A list: `A,B` and the option again; what follows is an argument of its own.
void make_list(CLI::Option* option) { option->delimiter(',')->allow_extra_args(false)->take_all(); }

std::string footer() {
  std::string text = "\nAllocators:\n";
  for (const suite::AllocatorKind& kind : suite::built_in_allocators()) {
    text += fmt::format("  {:<20}{}\n", kind.name, kind.title);
  }
  text += "\nFamilies of generated programs:\n";
  for (const suite::GeneratedFamily& family : suite::generated_families()) {
    text += fmt::format("  {:<20}{}\n", family.name, family.title);
  }
  return text + R"(
Examples:
  weir bench
  weir bench bench/traces --json=figures.json
  weir bench --family phases,pools --seed 1,2,3 --allocator weir --allocator ./libmine.so

docs/replay.md defines every figure, and says how to add an allocator or a trace. docs/command.md
says what all commands have in common. Exit codes: 0 done; 1 an allocator failed; 2 a bad command
line; 3 a file that can't be read or written, or an allocator that can't be loaded.)";
}

}  // namespace

void add_bench_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<SuiteCommand>();
  CLI::App* bench = app.add_subcommand(
      "bench",
      "Compare the memory and time that allocators take for recorded and generated programs");
  bench
      ->add_option("TRACE", command->traces,
                   "Recorded programs: traces, RMM logs, recordings, snapshots of PyTorch's, or "
                   "folders of them; -: standard input")
      ->transform(not_empty());
  make_list(bench
                ->add_option("--allocator", command->allocators,
                             "An allocator by name, or a library (FILE.so); default: all that are "
                             "listed below")
                ->check(an_allocator())
                ->type_name("NAME|FILE.so"));
  make_list(bench
                ->add_option("--family", command->families,
                             "Generated programs: a family that is listed below, or all; default: "
                             "all, but none where a TRACE is given")
                ->check(one_of(family_names()))
                ->type_name("NAME"));
  CLI::Option* const seed =
      bench
          ->add_option("--seed", command->seeds,
                       "Of generated programs; several give a program each; default: 1")
          ->transform(any_whole_number())
          ->type_name("N");
  make_list(seed);
  CLI::Option* const phases =
      bench->add_option("--phases", command->length.phases, "Of a generated program")
          ->transform(whole_number(1, 10'000))
          ->type_name("N")
          ->capture_default_str();
  CLI::Option* const pairs =
      bench
          ->add_option("--pairs", command->length.pairs,
                       "Allocations and frees of a phase of a generated program, about")
          ->transform(whole_number(1, 1'000'000))
          ->type_name("N")
          ->capture_default_str();
  command->of_generated = {seed, phases, pairs};
  bench->add_flag("--memory-only", command->memory_only,
                  "Leave host time out: what is left is the same in every run");
  bench
      ->add_option("--timeout", command->timeout_s,
                   "Seconds that a library (FILE.so) may take to load, and for each program")
      ->transform(whole_number(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  add_result_options(*bench, command->result);
  bench->footer(footer());
  bench->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
