// SPDX-License-Identifier: Apache-2.0
// A: the first operation of a communicator is captured.
#include <utility>

#include "comm/block.h"
#include "comm/every_operation.h"
#include "comm/scenario.h"

namespace weir {
namespace {

constexpr std::uint64_t kCount = std::uint64_t{1} << 20;

// Captures it as the first of all that the communicator does, and launches the graph. Where it
// should be refused: that it was, and that the capture was whole and the graph ran all the same.
Status capture_first(BenchRank& rank, const Asked& asked, CaptureMode mode, bool refused) {
  GraphPool pool(rank.heap);
  Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute, mode);
  if (!capture) return std::move(capture).error();
  const Bytes bytes = memory_for(asked, rank.ranks, kCount);
  Result<Block> block = Block::allocate(rank.heap, bytes, rank.compute);
  if (!block) return std::move(block).error();
  const std::vector<Operation> operations = operations_for(asked, rank, block->get(), kCount);
  if (Status filled = rank.kernels.fill(rank.compute, operations, 1); !filled) return filled;
  Result<Work> work = rank.comm.run(operations, rank.compute);
  if (!refused && !work) return std::move(work).error();
  if (refused && work) return Error(ErrorCode::capture, "it was not refused");
  if (refused && work.error().code() != ErrorCode::capture) return work.error();
  if (Status freed = block->free(); !freed) return freed;
  Result<Graph> graph = refused ? capture->end() : rank.comm.end_capture(*capture);
  if (!graph) return std::move(graph).error();
  Status launched = refused ? graph->launch(rank.compute) : rank.comm.launch(*graph, rank.compute);
  if (!launched) return launched;
  return rank.kernels.finish(rank.compute);
}

}  // namespace

Result<ScenarioReport> run_scenario_a(const OpenRanks& open) {
  ScenarioReport report{.name = "A", .title = "a captured all-reduce that fails"};
  Aim captured{.what = "first operations captured and run", .unit = "cases"};
  Aim refused{.what = "refused, and the capture whole, where it was not prepared", .unit = "cases"};
  for (const bool prepared : {true, false}) {
    RanksOptions wanted;
    wanted.prepare = prepared;
    Status ran =
        run_matrix(report, open, wanted, prepared ? captured : refused,
                   prepared ? "ok" : "refused, capture whole",
                   prepared ? "The first operation, captured, after prepare() and with no warm-up"
                            : "The same without prepare(): refused before anything is spoilt",
                   {""}, [&](BenchRank& rank, const Asked& asked, CaptureMode mode, int) {
                     return capture_first(rank, asked, mode, !prepared);
                   });
    if (!ran) return std::move(ran).error();
  }
  report.aims = {captured, refused};
  return report;
}

}  // namespace weir
