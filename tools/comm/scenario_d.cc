// SPDX-License-Identifier: Apache-2.0
// D: everything that NCCL lets one capture, compared with eager.
#include <utility>

#include "comm/block.h"
#include "comm/every_operation.h"
#include "comm/scenario.h"

namespace weir {
namespace {

constexpr std::uint64_t kCount = 262'144 + 5;  // odd, so that nothing falls on a boundary
constexpr std::uint64_t kOrders = 100;
// Each run has data of its own: what the other left is wrong.
constexpr std::uint64_t kEager = 7, kCaptured = 8;

// Finds out how many elements are wrong. On simulated devices nobody looks.
Status check(BenchRank& rank, const std::vector<Operation>& operations, std::uint64_t seed) {
  const auto wrong = rank.kernels.count_wrong(rank.compute, operations, seed);
  if (!wrong) return wrong.error();
  if (wrong->value_or(0) == 0) return {};
  return Error(ErrorCode::capture, std::to_string(**wrong) + " elements are wrong");
}

Status fill_and_run(BenchRank& rank, const std::vector<Operation>& operations, std::uint64_t seed) {
  if (Status filled = rank.kernels.fill(rank.compute, operations, seed); !filled) return filled;
  Result<Work> work = rank.comm.run(operations, overlapped(rank.compute));
  if (!work) return std::move(work).error();
  return work->wait(rank.compute);
}

Status run_eager(BenchRank& rank, const std::vector<Operation>& operations) {
  if (Status ran = fill_and_run(rank, operations, kEager); !ran) return ran;
  return check(rank, operations, kEager);
}

// The graph works on memory of its own pool as well: what is captured is a fill, the operations,
// and their end.
Status run_captured(BenchRank& rank, const std::vector<Operation>& operations, CaptureMode mode) {
  GraphPool pool(rank.heap);
  Result<Graph> graph =
      capture_graph(rank, pool, mode, [&] { return fill_and_run(rank, operations, kCaptured); });
  if (!graph) return std::move(graph).error();
  if (rank.kernels.wrong_reads(*graph, kOrders).value_or(0) > 0) {
    return Error(ErrorCode::capture, "an order that the graph allows reads what was not written");
  }
  for (int launch = 0; launch < 3; ++launch) {
    if (Status ran = rank.comm.launch(*graph, rank.compute); !ran) return ran;
  }
  return check(rank, operations, kCaptured);
}

// `first`: captured before it ever ran eagerly; else after.
Status compare(BenchRank& rank, const Asked& asked, CaptureMode mode, bool first) {
  Result<Block> block =
      Block::allocate(rank.heap, memory_for(asked, rank.ranks, kCount), rank.compute);
  if (!block) return std::move(block).error();
  const std::vector<Operation> operations = operations_for(asked, rank, block->get(), kCount);
  for (const bool capturing : {first, !first}) {
    Status ran = capturing ? run_captured(rank, operations, mode) : run_eager(rank, operations);
    if (!ran) return ran;
  }
  return block->free();
}

}  // namespace

Result<ScenarioReport> run_scenario_d(const OpenRanks& open) {
  ScenarioReport report{.name = "D", .title = "everything NCCL lets one capture"};
  Aim aim{.what = "cases equal to eager", .unit = "cases"};
  Status ran = run_matrix(report, open, {}, aim, "ok", "Captured, compared with eager",
                          {", first", ", later"},
                          [](BenchRank& rank, const Asked& asked, CaptureMode mode, int later) {
                            return compare(rank, asked, mode, later == 0);
                          });
  if (!ran) return std::move(ran).error();
  report.aims.push_back(aim);
  report.notes.emplace_back(
      "on simulated devices no data moves: equal means that no order that the graph's edges allow "
      "(100 of them) reads another write than the eager order, that no access races, and that the "
      "ranks asked for the same");
  report.notes.emplace_back(
      "process model: the ranks above. Several processes need a launcher and GPUs; registered "
      "memory is not in this matrix");
  return report;
}

}  // namespace weir
