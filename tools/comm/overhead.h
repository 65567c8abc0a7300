// SPDX-License-Identifier: Apache-2.0
// `weir comm bench`: what an operation costs through Weir, and through bare NCCL beside it.
// docs/comm.md defines every option and column. nccl-tests measures NCCL.
#pragma once

#include <string>
#include <vector>

#include "comm/scenario.h"

namespace weir {

struct OverheadOptions {
  std::vector<OperationKind> operations{OperationKind::all_reduce};
  Bytes least = 32_MiB, most = 32_MiB;
  std::uint64_t factor = 2;  // from size to size; two at least
  int operations_a_round = 50;
  int rounds = 31;          // through each
  bool captured = false;    // a round is one launch of a graph of them
  bool registered = false;  // buffers of a RegisteredPool
  bool overlap = false;     // on the communication stream; otherwise on the caller's
};

// "all_reduce", "all_gather", "reduce_scatter", or "all". Errors: invalid_argument.
Result<std::vector<OperationKind>> parse_operations(const std::string& text);
std::vector<Bytes> sizes_of(const OverheadOptions& options);
// The count that NCCL is given for a size: where ranks have a part each, parts are multiples of 16
// bytes. And 10^9 bytes a second that a link carries, as nccl-tests defines it.
std::uint64_t count_of(OperationKind kind, Bytes size, int ranks);
double bus_bandwidth(OperationKind kind, std::uint64_t count, double seconds, int ranks);

// Errors: invalid_argument (sizes that never grow); those of `open`, and what fails while it runs.
Result<ScenarioReport> run_overhead(const OpenRanks& open, const OverheadOptions& options);
std::string overhead_text(const ScenarioReport& report);

}  // namespace weir
