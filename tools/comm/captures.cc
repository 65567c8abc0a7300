// SPDX-License-Identifier: Apache-2.0
// A and D: every operation that a program can capture, one of each, in each capture mode. A: as the
// first that the communicator does. D: compared with eager.
#include <functional>
#include <utility>

#include "comm/block.h"
#include "comm/scenario.h"

namespace weir {
namespace {

constexpr std::uint64_t kFirstCount = std::uint64_t{1} << 20;
constexpr std::uint64_t kCount = 262'144 + 5;  // odd, so that nothing falls on a boundary
constexpr std::uint64_t kOrders = 100;
// Each run has data of its own: what the other left is wrong.
constexpr std::uint64_t kEager = 7, kCaptured = 8;

// What is asked for in one call: an operation, or a group that ranks must have.
struct Asked {
  std::string name;
  std::vector<OperationKind> kinds;
};
// Room to send from and to receive into, at most what all ranks have together.
Bytes room(int ranks, std::uint64_t count) {
  return Bytes{4 * count * static_cast<std::uint64_t>(ranks)};
}

std::vector<Asked> every_operation() {
  std::vector<Asked> all;
  for (int kind = 0; kind < kOperationKinds; ++kind) {
    const auto each = static_cast<OperationKind>(kind);
    if (each == OperationKind::send || each == OperationKind::receive) continue;
    all.push_back({std::string(name_of(each)), {each}});
  }
  all.push_back({"send and receive", {OperationKind::send, OperationKind::receive}});
  all.push_back({"group of two", {OperationKind::all_reduce, OperationKind::all_gather}});
  return all;
}

// For `rank`: sends go to the next rank, receives come from the one before. Each has memory of its
// own, one after the other; `memory` has memory_for() bytes.
std::vector<Operation> operations_for(const Asked& asked, const BenchRank& rank, void* memory,
                                      std::uint64_t count) {
  std::vector<Operation> operations;
  auto* at = static_cast<std::byte*>(memory);
  const std::uint64_t step = room(rank.ranks, count).count;
  for (const OperationKind kind : asked.kinds) {
    Operation operation{
        .kind = kind, .send = at, .receive = at + step, .count = count, .type = DataType::float32};
    if (kind == OperationKind::send) operation.peer = (rank.rank + 1) % rank.ranks;
    if (kind == OperationKind::receive) {
      operation.peer = (rank.rank + rank.ranks - 1) % rank.ranks;
    }
    operations.push_back(operation);
    at += 2 * step;
  }
  return operations;
}

Bytes memory_for(const Asked& asked, int ranks, std::uint64_t count) {
  return room(ranks, count) * 2 * asked.kinds.size();
}

// Adds a table: a row for each operation, and for each capture mode a column for each of
// `variants`, which end the column's name and are told by number. Each cell is a case of `aim`, on
// new ranks (ScenarioReport::run_case).
using MatrixCase = std::function<Status(BenchRank&, const Asked&, CaptureMode, int variant)>;
Status run_matrix(ScenarioReport& report, const OpenRanks& open, const RanksOptions& wanted,
                  Aim& aim, const std::string& well, const std::string& title,
                  const std::vector<std::string>& variants, const MatrixCase& run) {
  const std::pair<CaptureMode, const char*> modes[] = {{CaptureMode::global, "global"},
                                                       {CaptureMode::thread_local_, "thread-local"},
                                                       {CaptureMode::relaxed, "relaxed"}};
  ScenarioTable table{.title = title, .columns = {"operation"}, .rows = {}};
  for (const auto& [mode, name] : modes) {
    for (const std::string& variant : variants) table.columns.push_back(name + variant);
  }
  for (const Asked& asked : every_operation()) {
    std::vector<std::string> row{asked.name};
    for (const auto& [mode, name] : modes) {
      for (int variant = 0; variant < std::ssize(variants); ++variant) {
        Result<std::string> cell = report.run_case(
            open, wanted, aim, well,
            [&, mode = mode](BenchRank& rank) { return run(rank, asked, mode, variant); });
        if (!cell) return std::move(cell).error();
        row.push_back(*std::move(cell));
      }
    }
    table.rows.push_back(std::move(row));
  }
  report.tables.push_back(std::move(table));
  return {};
}

// Captures it as the first of all that the communicator does, and launches the graph. Where it
// should be refused: that it was, and that the capture was whole and the graph ran all the same.
Status capture_first(BenchRank& rank, const Asked& asked, CaptureMode mode, bool refused) {
  GraphPool pool(rank.heap);
  Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute, mode);
  if (!capture) return std::move(capture).error();
  const Bytes bytes = memory_for(asked, rank.ranks, kFirstCount);
  Result<Block> block = Block::allocate(rank.heap, bytes, rank.compute);
  if (!block) return std::move(block).error();
  const std::vector<Operation> operations = operations_for(asked, rank, block->get(), kFirstCount);
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
