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
      ->check(CLI::IsMember({"auto", "sim", "cuda"}))
      ->capture_default_str();
  command
      .add_option("-t,--ranks,--nthreads", ranks.ranks,
                  "Ranks that are threads; by default one for each GPU, or 2 simulated ones")
      ->transform(whole_number(1, 1024))
      ->type_name("N");
}

Result<OpenRanks> open_as(const RanksCommand& command) {
  bool cuda = command.device == "cuda";
  if (command.device == "auto") {
    // A launcher starts ranks that have GPUs: one without is told so.
    const Result<Launch> launch = find_launch(process_environment());
    if (!launch) return launch.error();
    const Result<int> gpus = CudaDevice::count();
    cuda = !launch->launcher.empty() || (gpus && *gpus > 0);
  }
  if (cuda) {
    return cuda_ranks(process_environment(), command.ranks.value_or(0));
  }
  return OpenRanks([count = command.ranks.value_or(2)](const RanksOptions& options) {
    SimRanksOptions sim;
    sim.ranks = count;
    return open_sim_ranks(sim, options);
  });
}

void add_json_option(CLI::App& command, std::string& json) {
  const CLI::Validator is_named(
      [](const std::string& name) -> std::string {
        if (!name.empty()) return {};
        return "the name of the file is empty: give one, or - for standard output, or leave the "
               "option out";
      },
      "");
  command.add_option("--json", json, "Write JSON to this file too; -: print JSON instead")
      ->type_name("FILE|-")
      ->check(is_named);
}

std::vector<NamedFile> named_nccl_library() {
  const std::optional<std::string> path = process_environment().get("WEIR_NCCL_LIBRARY");
  // A name without a folder is looked for where the system keeps its libraries.
  if (!path || path->find('/') == std::string::npos) return {};
  return {{"WEIR_NCCL_LIBRARY", *path}};
}

Result<JsonTarget> JsonTarget::open(const std::string& json) {
  JsonTarget target;
  target.standard_output_ = json == "-";
  if (json.empty() || target.standard_output_) return target;
  if (Status allowed = check_files(named_nccl_library(), {{"--json", json}}); !allowed) {
    return std::move(allowed).error();
  }
  const Result<Launch> launch = find_launch(process_environment());
  if (launch && launch->rank != 0) return target;
  Result<OutputFile> file = OutputFile::open(json, "");
  if (!file) return std::move(file).error();
  target.file_ = *std::move(file);
  return target;
}

Status JsonTarget::write(const std::string& text, const std::string& json) {
  fmt::print("{}", standard_output_ ? json : text);
  if (!file_) return {};
  std::fflush(stdout);  // the file may be standard output by another name
  file_->text() = json;
  return file_->commit();
}

ExitCode complain(const std::string& command, const Error& error) {
  fmt::print(stderr, "weir: {}: {}\n", command, error.message());
  return error.code() == ErrorCode::invalid_argument ? ExitCode::bad_input : ExitCode::failed;
}

}  // namespace weir
