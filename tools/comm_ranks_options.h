// SPDX-License-Identifier: Apache-2.0
// What the commands of `weir comm` have in common; ranks: `bench` and `scenario`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "command.h"
#include "grammar.h"

namespace weir {

struct RanksCommand {
  std::string device = "auto";
  std::optional<int> ranks;
};
void add_ranks_options(CLI::App& command, RanksCommand& ranks);
// Errors: invalid_argument; those of cuda_ranks().
Result<OpenRanks> open_as(const RanksCommand& command);

// The NCCL that WEIR_NCCL_LIBRARY names, which no output may replace; empty: it names none.
std::vector<NamedFile> named_nccl_library();

// Opens the files of the result, before anything is measured. Where a launcher made several
// processes, rank 0's alone writes. Errors: those of check_names() and OutputFile::open().
Result<ResultOutput> open_result(const ResultOptions& options);

}  // namespace weir
