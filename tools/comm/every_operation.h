// SPDX-License-Identifier: Apache-2.0
// Every operation that a program can capture, one of each, and scenarios that try them all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/scenario.h"

namespace weir {

// What is asked for in one call: an operation, or a group that ranks must have.
struct Asked {
  std::string name;
  std::vector<OperationKind> kinds;
};
// For `rank`: sends go to the next rank, receives come from the one before. Each has memory of its
// own, one after the other; `memory` has memory_for() bytes.
std::vector<Operation> operations_for(const Asked& asked, const BenchRank& rank, void* memory,
                                      std::uint64_t count);
Bytes memory_for(const Asked& asked, int ranks, std::uint64_t count);

// Adds a table: a row for each operation, and for each capture mode a column for each of
// `variants`, which end the column's name and are told by number. Each cell is a case of `aim`, on
// new ranks (ScenarioReport::run_case).
using MatrixCase = std::function<Status(BenchRank&, const Asked&, CaptureMode, int variant)>;
Status run_matrix(ScenarioReport& report, const OpenRanks& open, const RanksOptions& wanted,
                  Aim& aim, const std::string& well, const std::string& title,
                  const std::vector<std::string>& variants, const MatrixCase& run);

}  // namespace weir
