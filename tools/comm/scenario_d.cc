// D: everything that NCCL lets one capture, compared with eager.
#include <utility>

#include "comm/block.h"
#include "comm/every_operation.h"
#include "comm/scenario.h"

namespace weir {
namespace {

constexpr std::uint64_t kCount = 262'144 + 5;  // odd, so that nothing falls on a boundary
constexpr std::uint64_t kOrders = 100;
constexpr std::uint64_t kSeed = 7;

struct Case {
  Asked asked;
  CaptureMode mode;
  bool first;  // captured before it ever ran eagerly; else after
};

using Digests = std::vector<std::optional<std::uint64_t>>;

Result<Digests> digests_of(BenchRank& rank, const std::vector<Operation>& operations) {
  Digests digests;
  for (const Operation& operation : operations) {
    const Bytes bytes = operation.writes(rank.ranks, rank.rank);
    if (bytes == 0_B) continue;
    auto digest = rank.kernels.digest(rank.compute, {operation.receive, bytes});
    if (!digest) return std::move(digest).error();
    digests.push_back(*digest);
  }
  return digests;
}

Status fill_and_run(BenchRank& rank, const std::vector<Operation>& operations) {
  if (Status filled = rank.kernels.fill(rank.compute, operations, kSeed); !filled) return filled;
  Result<Work> work = rank.comm.run(operations, overlapped(rank.compute));
  if (!work) return std::move(work).error();
  return work->wait(rank.compute);
}

Result<Digests> run_eager(BenchRank& rank, const std::vector<Operation>& operations) {
  if (Status ran = fill_and_run(rank, operations); !ran) return std::move(ran).error();
  return digests_of(rank, operations);
}

// The graph works on memory of its own pool as well: what is captured is a fill, the operations,
// and their end.
Result<Digests> run_captured(BenchRank& rank, const std::vector<Operation>& operations,
                             CaptureMode mode) {
  GraphPool pool(rank.heap);
  Result<Graph> graph =
      capture_graph(rank, pool, mode, [&] { return fill_and_run(rank, operations); });
  if (!graph) return std::move(graph).error();
  if (rank.kernels.wrong_reads(*graph, kOrders).value_or(0) > 0) {
    return Error(ErrorCode::capture, "an order that the graph allows reads what was not written");
  }
  for (int launch = 0; launch < 3; ++launch) {
    if (Status ran = rank.comm.launch(*graph, rank.compute); !ran) return std::move(ran).error();
  }
  return digests_of(rank, operations);
}

Status compare(BenchRank& rank, const Case& what) {
  Result<Block> block =
      Block::allocate(rank.heap, memory_for(what.asked, rank.ranks, kCount), rank.compute);
  if (!block) return std::move(block).error();
  const std::vector<Operation> operations = operations_for(what.asked, rank, block->get(), kCount);
  Digests eager, captured;
  for (const bool capturing : {what.first, !what.first}) {
    Result<Digests> ran =
        capturing ? run_captured(rank, operations, what.mode) : run_eager(rank, operations);
    if (!ran) return std::move(ran).error();
    (capturing ? captured : eager) = *std::move(ran);
  }
  if (eager != captured) {
    return Error(ErrorCode::capture, "the result differs from the eager one");
  }
  return block->free();
}

}  // namespace

Result<ScenarioReport> run_scenario_d(const OpenRanks& open) {
  ScenarioReport report{.name = "D", .title = "everything NCCL lets one capture"};
  Aim aim{.what = "cases equal to eager", .unit = "cases"};
  ScenarioTable table{
      .title = "Captured, compared with eager", .columns = {"operation"}, .rows = {}};
  for (const CaptureMode mode : kCaptureModes) {
    for (const char* const when : {"first", "later"}) {
      table.columns.push_back(std::string(name_of(mode)) + ", " + when);
    }
  }
  for (const Asked& asked : every_operation()) {
    std::vector<std::string> row{asked.name};
    for (const CaptureMode mode : kCaptureModes) {
      for (const bool first : {true, false}) {
        Result<std::string> cell = report.run_case(open, {}, aim, "ok", [&](BenchRank& rank) {
          return compare(rank, {asked, mode, first});
        });
        if (!cell) return std::move(cell).error();
        row.push_back(*std::move(cell));
      }
    }
    table.rows.push_back(std::move(row));
  }
  report.tables.push_back(std::move(table));
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
