// SPDX-License-Identifier: Apache-2.0
// `weir comm bench`: what a collective costs through Weir, and through bare NCCL beside it.
// docs/comm.md defines every option and column. nccl-tests measures NCCL.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/scenario.h"
#include "weir/comm/operation.h"

namespace weir {

struct OverheadOptions {
  std::vector<OperationKind> kinds = {OperationKind::all_reduce};  // or all_gather, reduce_scatter
  Bytes least = 32_MiB, most = 32_MiB;
  std::uint64_t factor = 2;  // from size to size; two at least
  int operations_a_round = 50;
  int rounds = 31;        // through each
  bool captured = false;  // a round is one launch of a graph of them
  bool overlap = false;   // on the communication stream; otherwise on the caller's
};

std::vector<Bytes> sizes_of(const OverheadOptions& options);
// 10^9 bytes a second that a link carries, as nccl-tests defines it. `size`: of the larger buffer.
double bus_bandwidth(OperationKind kind, Bytes size, double seconds, int ranks);

// Queues the operation so many times on NCCL as a program without Weir calls it: by the pointers of
// the loaded library, with no virtual call, exchange of the thread's capture mode, or lock between.
// (On simulated ranks there is no library: it calls `nccl`.) The GPU of `comm` is the thread's
// current one. Errors: device.
Status queue_bare(Nccl& nccl, CommHandle comm, const Operation& operation, int times,
                  Stream stream);

// Throws: invalid_argument (sizes that never grow); what `open` throws, and what fails while it
// runs.
ScenarioReport run_overhead(const OpenRanks& open, const OverheadOptions& options);
std::string overhead_text(const ScenarioReport& report);

}  // namespace weir
