// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "grammar.h"
#include "look/any_trace.h"
#include "look/output_file.h"
#include "option_checks.h"
#include "replay/limit.h"
#include "replay/replay.h"
#include "replay/report.h"

namespace weir {
namespace {

struct ReplayCommand {
  std::vector<std::string> traces;
  std::string device = "sim";
  std::string limit;  // empty: none
  ResultOptions result;
  bool verify = false, quiet = false;
  ReplayOptions options;
};

Result<std::unique_ptr<ReplayDevice>> open_device(const ReplayCommand& command) {
  if (command.device == "cuda") return make_cuda_replay_device(command.verify);
  return make_sim_replay_device();
}

Result<ReplayReport> replay_file(const std::string& path, const ReplayCommand& command,
                                 const ReplayLimit& limit) {
  ProgressBar bar(path, !command.quiet);
  const Result<RecordedTrace> trace = read_any_trace(path);
  if (!trace.ok()) return trace.error();
  Result<std::unique_ptr<ReplayDevice>> device = open_device(command);
  if (!device.ok()) return std::move(device).error();
  ReplayOptions options = command.options;
  options.limit = limit.for_peak(trace->peak_live);
  options.progress = [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); };
  return replay(*trace, **device, options);
}

// Runs every trace, also after one that failed: each stands for itself. The first failure is what
// the command returns.
ExitCode run(const ReplayCommand& command) {
  ReplayLimit limit;
  if (!command.limit.empty()) {
    const Result<ReplayLimit> parsed = parse_replay_limit(command.limit);
    if (!parsed.ok()) return complain("--limit: " + parsed.error().message()), ExitCode::bad_usage;
    limit = *parsed;
  }
  std::vector<NamedFile> inputs;
  for (const std::string& path : command.traces) inputs.push_back({"TRACE", path});
  Result<ResultOutput> output = ResultOutput::open(command.result, std::move(inputs));
  if (!output) return exit_code_of(output.error());
  std::vector<ReplayOutcome> outcomes;
  ExitCode exit_code = ExitCode::ok;
  for (const std::string& path : command.traces) {
    ReplayOutcome& outcome = outcomes.emplace_back();
    outcome.trace = path;
    Result<ReplayReport> report = replay_file(path, command, limit);
    if (report.ok()) {
      outcome.report = *std::move(report);
    } else {
      outcome.error = std::move(report).error();
    }
    if (exit_code == ExitCode::ok) exit_code = outcome.exit_code();
    if (outcome.report && !command.quiet) {
      const Status shown =
          output->text((outcomes.size() > 1 ? "\n" : "") + report_text(*outcome.report));
      if (!shown) return exit_code_of(shown);
    }
    if (!outcome.complaint().empty()) complain(outcome.complaint());
  }
  const auto note = [&exit_code](const Status& written) {
    const ExitCode code = exit_code_of(written);
    if (exit_code == ExitCode::ok) exit_code = code;
  };
  if (output->wants_json()) note(output->json(report_json(outcomes)));
  note(output->finish());
  return exit_code;
}

constexpr const char* kReplayFooter = R"(
Examples:
  weir replay bench/traces/gnn.trace.gz
  weir replay --repeat 3 --limit 1.03x --json bench/traces/*.trace.gz

docs/replay.md defines every number, docs/command.md what all commands have in common. Exit codes: 0
all is well; 1 out of memory under --limit, or a mistake of Weir's was found by --validate, --verify
or the race checker; 2 a bad command line; 3 a trace that can't be read, a file that can't be
written, or a device that failed.)";

}  // namespace

void add_replay_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<ReplayCommand>();
  CLI::App* replay = app.add_subcommand(
      "replay", "Run recorded programs through Weir, and report the memory and time they take");
  replay
      ->add_option("TRACE", command->traces,
                   "What to run: a trace, an RMM log, a recording, or a snapshot of PyTorch's; -: "
                   "standard input")
      ->required()
      ->transform(not_empty());
  replay
      ->add_option("--device", command->device, "sim: the simulated GPU; cuda: the first real one")
      ->check(one_of({"sim", "cuda"}))
      ->type_name("sim|cuda")
      ->capture_default_str();
  replay
      ->add_option("--limit", command->limit,
                   "Most memory to hold: a size (40GiB, 512MiB), or a multiple of the trace's own "
                   "peak (1.03x); default: none")
      ->transform(not_empty())
      ->type_name("SIZE|RATIOx");
  replay->add_option("--repeat", command->options.passes, "Run the whole trace so many times")
      ->transform(whole_number(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  add_choice<ReusePolicy>(
      *replay, "--policy", command->options.policy,
      {{"wait", ReusePolicy::wait},
       {"balanced", ReusePolicy::balanced},
       {"no_wait", ReusePolicy::no_wait}},
      "Memory whose last use still runs: wait for it, what costs less (balanced, "
      "the default), or never (no_wait)");
  add_choice<Trust>(
      *replay, "--trust", command->options.trust,
      {{"told", Trust::told}, {"context", Trust::context}},
      "Uses on other streams are told (the default), or may be untold, as in PyTorch: memory "
      "changes streams only behind events of the whole context");
  add_choice<MemoryKind>(*replay, "--memory", command->options.memory,
                         {{"pages", MemoryKind::pages}, {"plain", MemoryKind::plain}},
                         "What memory is made of: pages that Weir maps (the default), or plain "
                         "segments, as of cudaMalloc");
  add_choice<Addresses>(
      *replay, "--addresses", command->options.addresses,
      {{"any", Addresses::any}, {"fixed", Addresses::fixed}, {"prefer", Addresses::prefer}},
      "Where memory lies: anywhere (the default), or where the trace alone decides, and no time");
  add_result_options(*replay, command->result);
  replay->add_flag("--validate", command->options.validate,
                   "Check the whole heap after every line of the trace (slow)");
  replay->add_flag("--verify", command->verify,
                   "On a real GPU, fill blocks with patterns and check them (the simulated one "
                   "always checks)");
  replay
      ->add_option("--graph-orders", command->options.graph_orders,
                   "Run each captured graph in so many random orders that its edges allow (on the "
                   "simulated device); 0: none")
      ->transform(whole_number(0, 1'000'000))
      ->type_name("N");
  replay->add_option("--seed", command->options.seed, "Of the patterns")
      ->transform(any_whole_number())
      ->type_name("N")
      ->capture_default_str();
  replay->add_flag("--quiet", command->quiet, "No report and no progress bar");
  replay->footer(kReplayFooter);
  replay->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
