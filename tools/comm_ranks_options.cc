#include "comm_ranks_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "replay/text_file.h"

namespace weir {

void add_ranks_options(CLI::App& command, RanksCommand& ranks) {
  command
      .add_option("--device", ranks.device,
                  "sim: ranks are threads on simulated GPUs; cuda: this is one rank of a launch")
      ->check(CLI::IsMember({"sim", "cuda"}))
      ->capture_default_str();
  command.add_option("-t,--nthreads,--ranks", ranks.ranks, "Ranks, where they are simulated")
      ->capture_default_str();
}

OpenRanks open_as(const RanksCommand& ranks) {
  if (ranks.device == "cuda") {
    return
        [](const RanksOptions& options) { return open_cuda_ranks(process_environment(), options); };
  }
  return [count = ranks.ranks](const RanksOptions& options) {
    SimRanksOptions sim;
    sim.ranks = count;
    return open_sim_ranks(sim, options);
  };
}

ExitCode tell(const std::string& text, const std::string& json_text, const std::string& json,
              const std::string& command) {
  fmt::print("{}", json == "-" ? json_text : text);
  if (json.empty() || json == "-") return ExitCode::ok;
  const Status written = write_text_file(json, json_text);
  return written ? ExitCode::ok : complain(command, written.error());
}

ExitCode complain(const std::string& command, const Error& error) {
  fmt::print(stderr, "weir: {}: {}\n", command, error.message());
  return error.code() == ErrorCode::invalid_argument ? ExitCode::bad_input : ExitCode::failed;
}

}  // namespace weir
