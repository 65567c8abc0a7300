// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm_ranks_options.h"
#include "command.h"
#include "option_checks.h"
#include "weir/config.h"

namespace weir {
namespace {

struct BenchCommand {
  RanksCommand ranks;
  std::vector<std::string> operations = {"all_reduce"};
  std::string least = "32M";
  std::optional<std::string> most;
  ResultOptions result;
  OverheadOptions options;
};

Result<Bytes> parse_size(const std::string& option, const std::string& text) {
  constexpr Bytes kMost{1'000'000'000'000'000'000};
  Result<Bytes> size = parse_bytes(text);
  if (size && *size < kMost) return size;
  return Error(ErrorCode::invalid_argument,
               option + " '" + text + "': a size is a number of bytes, such as 8, 64K, 32M or 4G");
}

Result<OverheadOptions> options_of(const BenchCommand& command) {
  OverheadOptions options = command.options;
  options.kinds.clear();
  for (const std::string& name : command.operations) {
    options.kinds.push_back(name == "all_reduce"   ? OperationKind::all_reduce
                            : name == "all_gather" ? OperationKind::all_gather
                                                   : OperationKind::reduce_scatter);
  }
  const Result<Bytes> least = parse_size("--minbytes", command.least);
  const Result<Bytes> most = parse_size("--maxbytes", command.most.value_or(command.least));
  if (!least || !most) return least ? most.error() : least.error();
  options.least = *least;
  options.most = *most;
  return options;
}

constexpr const char* kName = "comm bench";

ExitCode run(const BenchCommand& command) {
  const Result<OverheadOptions> options = options_of(command);
  if (!options) return exit_code_of(options.error(), kName);
  return run_and_print(command.ranks, command.result, kName,
                       [&](const OpenRanks& open) { return run_overhead(open, *options); });
}

constexpr const char* kCommBenchFooter = R"(
Sizes are bytes, or with K, M or G (1024 each). Examples:
  weir comm bench --ranks 4 -b 8 -e 1G -f 2
  weir comm bench --operation all_gather -b 1M -e 64M -f 4 --captured

docs/comm.md defines every option and column, docs/command.md what all commands have in common. Exit
codes: 0 all is well; 1 wrong results; 2 a bad command line; 3 the ranks can't run, or a file can't
be written.)";

}  // namespace

void add_comm_bench_command(CLI::App& comm, ExitCode& exit_code) {
  auto command = std::make_shared<BenchCommand>();
  OverheadOptions& options = command->options;
  CLI::App* bench = comm.add_subcommand(
      "bench", "Time collectives through Weir and through NCCL itself, in turns");
  add_ranks_options(*bench, command->ranks);
  bench
      ->add_option("--operation", command->operations,
                   "Some of all_reduce, all_gather and reduce_scatter, between commas; sums")
      ->delimiter(',')
      ->check(CLI::Validator(CLI::IsMember({"all_reduce", "all_gather", "reduce_scatter"}))
                  .description(""))
      ->type_name("NAME,...")
      ->default_str("all_reduce");
  bench->add_option("-b,--minbytes", command->least, "The first size")->capture_default_str();
  bench->add_option("-e,--maxbytes", command->most, "The last size")->default_str("the first");
  bench->add_option("-f,--stepfactor", options.factor, "Multiplies from size to size")
      ->transform(whole_number(2, 1'000'000'000))
      ->type_name("N")
      ->capture_default_str();
  bench->add_option("-n,--iters", options.operations_a_round, "Operations of a round")
      ->transform(whole_number(1, 10'000))
      ->type_name("N")
      ->capture_default_str();
  bench->add_flag("--captured", options.captured, "A round is the launch of a graph of them");
  bench->add_flag("--overlap", options.overlap,
                  "On the communicator's own stream; else on the caller's, as NCCL itself");
  add_result_options(*bench, command->result);
  bench->footer(kCommBenchFooter);
  bench->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
