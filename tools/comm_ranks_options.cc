// SPDX-License-Identifier: Apache-2.0
#include "comm_ranks_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "option_checks.h"
#include "weir/cuda_device.h"

namespace weir {

void add_ranks_options(CLI::App& command, RanksCommand& ranks) {
  command
      .add_option(
          "--device", ranks.device,
          "cuda: ranks are threads of this process, each on a GPU, or, started by a "
          "launcher, it is one rank; sim: threads on simulated GPUs; auto: cuda where there "
          "is a GPU, else sim")
      ->check(one_of({"auto", "sim", "cuda"}))
      ->type_name("auto|sim|cuda")
      ->capture_default_str();
  command
      .add_option("-t,--ranks,--nthreads", ranks.ranks,
                  "Ranks that are threads; by default one for each GPU, or 2 simulated ones")
      ->transform(whole_number(1, 1024))
      ->type_name("N");
}

namespace {

// Throws what cuda_ranks() throws.
OpenRanks open_as(const RanksCommand& command) {
  bool cuda = command.device == "cuda";
  if (command.device == "auto") {
    // A launcher starts ranks that have GPUs: one without is told so.
    const Launch launch = need(find_launch(process_environment()));
    const Result<int> gpus = CudaDevice::count();
    cuda = !launch.launcher.empty() || (gpus && *gpus > 0);
  }
  if (cuda) return cuda_ranks(process_environment(), command.ranks.value_or(0));
  return [count = command.ranks.value_or(2)](const RanksOptions& options) {
    return open_sim_ranks({.ranks = count}, options);
  };
}

// The files of the result, before anything is measured. Where a launcher made several processes,
// rank 0's alone writes. Errors: those of ResultOutput::open().
Result<ResultOutput> open_result(const ResultOptions& options) {
  const Result<Launch> launch = find_launch(process_environment());
  return ResultOutput::open(options, named_nccl_library(), !launch || launch->rank == 0);
}

}  // namespace

std::vector<NamedFile> named_nccl_library() {
  const Environment environment = process_environment();
  const std::string* const path = value_of(environment, "WEIR_NCCL_LIBRARY");
  // A name without a folder is looked for where the system keeps its libraries.
  if (path == nullptr || path->find('/') == std::string::npos) return {};
  return {{"WEIR_NCCL_LIBRARY", *path}};
}

ExitCode run_and_print(const RanksCommand& ranks, const ResultOptions& result,
                       const std::string& name,
                       const std::function<ScenarioReport(const OpenRanks&)>& run) {
  try {
    const OpenRanks open = open_as(ranks);
    ResultOutput output = need(open_result(result));
    const ScenarioReport report = run(open);
    if (report.is_rank_0) {
      need(output.write(scenario_text(report), [&] { return scenario_json(report); }));
    }
    return report.holds() ? ExitCode::ok : ExitCode::answer_is_no;
  } catch (const Exception& error) {
    return exit_code_of(Error(error.code(), error.what()), name);
  }
}

}  // namespace weir
