// A: the first operation of a communicator is captured.
#include <mutex>
#include <utility>

#include "comm/block.h"
#include "comm/every_operation.h"
#include "comm/scenario.h"

namespace weir {
namespace {

constexpr std::uint64_t kCount = std::uint64_t{1} << 20;

struct Case {
  Asked asked;
  CaptureMode mode;
};

// Captures it as the first of all that the communicator does, and launches the graph. Where it
// should be refused: that it was, and that the capture was whole and the graph ran all the same.
Status capture_first(BenchRank& rank, const Case& what, bool refused) {
  GraphPool pool(rank.heap);
  Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute, what.mode);
  if (!capture) return std::move(capture).error();
  const Bytes bytes = memory_for(what.asked, rank.ranks, kCount);
  Result<Block> block = Block::allocate(rank.heap, bytes, rank.compute);
  if (!block) return std::move(block).error();
  const std::vector<Operation> operations = operations_for(what.asked, rank, block->get(), kCount);
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

// Every operation in every mode, each in a new world.
Status run_matrix(const OpenRanks& open, bool prepared, ScenarioReport& report, Aim& aim) {
  ScenarioTable table{
      .title = prepared ? "The first operation, captured, after prepare() and with no warm-up"
                        : "The same without prepare(): refused before anything is spoilt",
      .columns = {"operation"},
      .rows = {}};
  for (const CaptureMode mode : kCaptureModes) table.columns.emplace_back(name_of(mode));
  for (const Asked& asked : every_operation()) {
    std::vector<std::string> row{asked.name};
    for (const CaptureMode mode : kCaptureModes) {
      RanksOptions wanted;
      wanted.prepare = prepared;
      Result<std::string> cell = report.run_case(
          open, wanted, aim, prepared ? "ok" : "refused, capture whole", [&](BenchRank& rank) {
            return capture_first(rank, {asked, mode}, !prepared);
          });
      if (!cell) return std::move(cell).error();
      row.push_back(*std::move(cell));
    }
    table.rows.push_back(std::move(row));
  }
  report.tables.push_back(std::move(table));
  return {};
}

}  // namespace

Result<ScenarioReport> run_scenario_a(const OpenRanks& open) {
  ScenarioReport report{.name = "A", .title = "a captured all-reduce that fails"};
  Aim captured{.what = "first operations captured and run", .unit = "cases"};
  Aim refused{.what = "refused, and the capture whole, where it was not prepared", .unit = "cases"};
  if (Status ran = run_matrix(open, true, report, captured); !ran) return std::move(ran).error();
  if (Status ran = run_matrix(open, false, report, refused); !ran) return std::move(ran).error();
  report.aims = {captured, refused};
  return report;
}

}  // namespace weir
