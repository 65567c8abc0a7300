// SPDX-License-Identifier: Apache-2.0
// What the commands of `weir comm` have in common; ranks: `bench` and `scenario`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/scenario.h"
#include "command.h"
#include "grammar.h"

namespace weir {

struct RanksCommand {
  std::string device = "auto";
  std::optional<int> ranks;
};
void add_ranks_options(CLI::App& command, RanksCommand& ranks);
// The NCCL that WEIR_NCCL_LIBRARY names, which no output may replace; empty: it names none.
std::vector<NamedFile> named_nccl_library();

// Runs a benchmark or scenario on these ranks, and prints its report, in rank 0's process alone.
// The files of the result are opened before anything is measured.
ExitCode run_and_print(const RanksCommand& ranks, const ResultOptions& result,
                       const std::string& name,
                       const std::function<ScenarioReport(const OpenRanks&)>& run);

}  // namespace weir
