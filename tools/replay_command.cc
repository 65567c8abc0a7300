#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "option_checks.h"
#include "progress.h"
#include "replay/limit.h"
#include "replay/named_files.h"
#include "replay/replay.h"
#include "replay/report.h"
#include "replay/text_file.h"
#include "replay/timeline.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

constexpr const char* kStandardOutput = "-";

struct ReplayCommand {
  std::vector<std::string> traces;
  std::string device = "sim";
  std::string limit;     // empty: none
  std::string json;      // a file, or kStandardOutput; empty: not wanted
  std::string timeline;  // a file; empty: not wanted
  bool verify = false, quiet = false;
  ReplayOptions options;
};

void complain(const std::string& text) { fmt::print(stderr, "weir: {}\n", text); }

Result<std::unique_ptr<ReplayDevice>> open_device(const ReplayCommand& command) {
  if (command.device == "cuda") return make_cuda_replay_device(command.verify);
  return make_sim_replay_device();
}

Result<ReplayReport> replay_file(const std::string& path, const ReplayCommand& command,
                                 const ReplayLimit& limit, Timeline* timeline) {
  const Result<Trace> trace = read_trace(path);
  if (!trace.ok()) return trace.error();
  Result<std::unique_ptr<ReplayDevice>> device = open_device(command);
  if (!device.ok()) return std::move(device).error();
  ProgressBar bar(path, !command.quiet);
  ReplayOptions options = command.options;
  options.limit = limit.for_peak(trace->peak_live);
  options.timeline = timeline;
  options.progress = [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); };
  return replay(*trace, **device, options);
}

Status check_files_of(const ReplayCommand& command) {
  std::vector<NamedFile> inputs, outputs;
  for (const std::string& path : command.traces) inputs.push_back({"TRACE", path});
  if (!command.json.empty() && command.json != kStandardOutput) {
    outputs.push_back({"--json", command.json});
  }
  if (!command.timeline.empty()) outputs.push_back({"--timeline", command.timeline});
  return check_files(inputs, outputs);
}

// Runs every trace, also after one that failed: each stands for itself. The first failure is what
// the command returns.
ExitCode run(const ReplayCommand& command) {
  ReplayLimit limit;
  if (!command.limit.empty()) {
    const Result<ReplayLimit> parsed = parse_replay_limit(command.limit);
    if (!parsed.ok()) return complain("--limit: " + parsed.error().message()), ExitCode::bad_input;
    limit = *parsed;
  }
  if (const Status allowed = check_files_of(command); !allowed) {
    return complain(allowed.error().message()), ExitCode::bad_input;
  }
  Timeline timeline;
  std::vector<ReplayOutcome> outcomes;
  ExitCode exit_code = ExitCode::ok;
  for (const std::string& path : command.traces) {
    ReplayOutcome& outcome = outcomes.emplace_back();
    outcome.trace = path;
    Result<ReplayReport> report =
        replay_file(path, command, limit, command.timeline.empty() ? nullptr : &timeline);
    if (report.ok()) {
      outcome.report = *std::move(report);
    } else {
      outcome.error = std::move(report).error();
    }
    if (exit_code == ExitCode::ok) exit_code = outcome.exit_code();
    if (outcome.report && !command.quiet && command.json != kStandardOutput) {
      fmt::print("{}{}", outcomes.size() > 1 ? "\n" : "", report_text(*outcome.report));
      std::fflush(stdout);
    }
    if (!outcome.complaint().empty()) complain(outcome.complaint());
  }
  const auto write = [&exit_code](const std::string& path, const std::string& text) {
    const Status written = write_text_file(path, text);
    if (written.ok()) return;
    complain(written.error().message());
    if (exit_code == ExitCode::ok) exit_code = ExitCode::failed;
  };
  if (command.json == kStandardOutput)
    fmt::print("{}", report_json(outcomes));
  else if (!command.json.empty())
    write(command.json, report_json(outcomes));
  if (!command.timeline.empty()) write(command.timeline, timeline.json());
  return exit_code;
}

constexpr const char* kFooter = R"(
Examples:
  weir replay bench/traces/gnn.trace.gz
  weir replay --repeat 3 --limit 1.03x --json bench/traces/*.trace.gz
  weir replay --timeline gnn.json.gz bench/traces/gnn.trace.gz   (open it at ui.perfetto.dev)

Exit codes: 0 all is well; 1 the device or a file failed; 2 a bad trace or command line; 3 out of
memory under --limit; 4 --validate, the race checker or --verify found a mistake of Weir's.)";

}  // namespace

void add_replay_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<ReplayCommand>();
  CLI::App* replay = app.add_subcommand(
      "replay", "Run recorded programs through Weir, and report the memory and time they take");
  replay->add_option("TRACE", command->traces, "Trace files (.trace or .trace.gz)")->required();
  replay
      ->add_option("--device", command->device, "sim: the simulated GPU; cuda: the first real one")
      ->check(CLI::IsMember({"sim", "cuda"}))
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
       {"grow", ReusePolicy::grow},
       {"balanced", ReusePolicy::balanced},
       {"no_wait", ReusePolicy::no_wait}},
      "Memory whose last use still runs: wait for it, grow instead, what costs less (balanced, "
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
  replay->add_flag(
      "--json{-}", command->json,
      "Print JSON instead of the report; --json=FILE: write it there, beside the report");
  replay
      ->add_option("--timeline", command->timeline,
                   "Write a timeline for Perfetto or chrome://tracing (.json or .json.gz)")
      ->transform(not_empty())
      ->type_name("FILE");
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
  replay->footer(kFooter);
  replay->callback([command, &exit_code] { exit_code = run(*command); });
}

std::vector<std::string> with_json_file_joined(std::vector<std::string> arguments) {
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] != "--json" || !arguments[i + 1].ends_with(".json")) continue;
    arguments[i] += "=" + arguments[i + 1];
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  return arguments;
}

}  // namespace weir
