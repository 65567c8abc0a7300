// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "comm/bench.h"
#include "comm_ranks_options.h"
#include "command.h"
#include "option_checks.h"

namespace weir {
namespace {

struct BenchCommand {
  RanksCommand ranks;
  std::string operation = "all_reduce";
  std::string least = "32M", most = "32M", step = "1M";
  ResultOptions result;
  bool raw = false, compare = false;
  BenchOptions options;
};

Result<BenchOptions> options_of(const BenchCommand& command) {
  BenchOptions options = command.options;
  auto operations = parse_operations(command.operation);
  if (!operations) return operations.error();
  const Result<Bytes> least = parse_size("--minbytes", command.least);
  const Result<Bytes> most = parse_size("--maxbytes", command.most);
  const Result<Bytes> step = parse_size("--stepbytes", command.step);
  for (const Result<Bytes>* const size : {&least, &most, &step}) {
    if (!*size) return size->error();
  }
  options.operations = *std::move(operations);
  options.least = *least;
  options.most = *most;
  options.step = *step;
  if (command.raw) options.path = BenchPath::raw;
  if (command.compare) options.path = BenchPath::both;
  return options;
}

constexpr const char* kName = "comm bench";

ExitCode run(const BenchCommand& command) {
  Result<BenchOptions> options = options_of(command);
  if (!options) return exit_code_of(options.error(), kName);
  const Result<OpenRanks> open = open_as(command.ranks);
  if (!open) return exit_code_of(open.error(), kName);
  Result<ResultOutput> output = open_result(command.result);
  if (!output) return exit_code_of(output.error(), kName);
  BenchWatcher watcher;
  if (output->wants_text()) {
    watcher = [&output](const BenchReport& so_far) {
      return output->text(bench_text_so_far(so_far));
    };
  }
  const Result<BenchReport> report = run_bench(*open, *options, watcher);
  if (!report) return exit_code_of(report.error(), kName);
  if (report->is_rank_0) {
    const Status written =
        output->write(bench_text_end(*report), [&report] { return bench_json(*report); });
    if (!written) return exit_code_of(written, kName);
  }
  return report->sound() ? ExitCode::ok : ExitCode::answer_is_no;
}

void add_sizes(CLI::App& bench, BenchCommand& command) {
  bench.add_option("-b,--minbytes", command.least, "The first size")->capture_default_str();
  bench.add_option("-e,--maxbytes", command.most, "The last size")->capture_default_str();
  bench.add_option("-i,--stepbytes", command.step, "Added from size to size")
      ->capture_default_str();
  bench
      .add_option("-f,--stepfactor", command.options.factor,
                  "Multiplies from size to size instead, where it is more than 1")
      ->transform(whole_number(1, 1'000'000'000))
      ->type_name("N");
}

void add_counts(CLI::App& bench, BenchOptions& options) {
  bench.add_option("-n,--iters", options.iterations, "Groups of operations that are timed")
      ->transform(whole_number(1, kMostTimes))
      ->type_name("N")
      ->capture_default_str();
  bench.add_option("-m,--agg_iters", options.aggregated, "Operations in a group")
      ->transform(whole_number(1, kMostInGroup))
      ->type_name("N")
      ->capture_default_str();
  bench.add_option("-c,--check", options.checks, "Times that results are checked")
      ->transform(whole_number(0, kMostTimes))
      ->type_name("N")
      ->capture_default_str();
  bench
      .add_option("-R,--local_register", options.registered,
                  "1: buffers of a pool registered with NCCL (weir::RegisteredPool); 0: of the "
                  "heap")
      ->check(CLI::IsMember({"0", "1"}))
      ->capture_default_str();
  bench
      .add_option("-G,--cudagraph", options.graph_launches,
                  "Capture all of them into one graph, and launch it so many times; 0: eager")
      ->transform(whole_number(0, kMostTimes))
      ->type_name("N")
      ->capture_default_str();
}

constexpr const char* kCommBenchFooter = R"(
Sizes are bytes, or with K, M or G (1024 each). Examples:
  weir comm bench --ranks 4 -b 8 -e 1G -f 2
  weir comm bench --operation all --ranks 2 -b 1M -e 64M -f 4 -G 10
  weir comm bench --compare -b 8 -e 8

docs/comm-bench.md defines every option and column, docs/command.md what all commands have in
common. Exit codes: 0 all is well; 1 wrong results; 2 a bad command line; 3 the ranks can't run, or a
file can't be written.)";

}  // namespace

void add_comm_bench_command(CLI::App& comm, ExitCode& exit_code) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* bench = comm.add_subcommand(
      "bench", "Time collectives, as nccl-tests does: through Weir, through NCCL, or both");
  add_ranks_options(*bench, command->ranks);
  bench
      ->add_option("--operation", command->operation,
                   "all_reduce, all_gather, reduce_scatter, alltoall, sendrecv or all")
      ->capture_default_str();
  add_sizes(*bench, *command);
  add_counts(*bench, command->options);
  bench->add_flag("--overlap", command->options.overlap,
                  "On the communicator's own stream; else on the caller's, as NCCL itself");
  CLI::Option* raw = bench->add_flag("--raw", command->raw, "Ask NCCL itself, without Weir");
  bench
      ->add_flag("--compare", command->compare,
                 "Through Weir and NCCL itself in turns, and the host time that Weir adds")
      ->excludes(raw);
  add_result_options(*bench, command->result);
  bench->footer(kCommBenchFooter);
  bench->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
