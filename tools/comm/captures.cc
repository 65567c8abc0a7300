// SPDX-License-Identifier: Apache-2.0
// A and D: every operation that a program can capture, one of each, in each capture mode. A: as the
// first that the communicator does. D: compared with eager.
#include <fmt/format.h>

#include <utility>

#include "comm/scenario.h"

namespace weir {
namespace {

constexpr std::uint64_t kCount = (1 << 20) + 5;  // odd, so that nothing falls on a boundary
constexpr std::uint64_t kOrders = 100;
// Each run has data of its own: what the other left is wrong.
constexpr std::uint64_t kEager = 7, kCaptured = 8;

// What is asked for in one call: an operation, or a group that ranks must have.
struct Asked {
  std::string name;
  std::vector<OperationKind> kinds;
};

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

// The operations of one rank, and their memory: each has room to send from, and to receive into,
// for what all ranks have together. Sends go to the next rank, receives come from the one before.
struct Ready {
  Block memory;
  std::vector<Operation> operations;

  Ready(const Asked& asked, const BenchRank& rank) {
    const Bytes room{4 * kCount * static_cast<std::uint64_t>(rank.ranks)};
    memory = allocate(*rank.heap, room * 2 * asked.kinds.size(), rank.compute);
    auto* at = static_cast<std::byte*>(memory.get());
    for (const OperationKind kind : asked.kinds) {
      const bool receives = kind == OperationKind::receive;
      const int step = kind == OperationKind::send ? 1 : receives ? rank.ranks - 1 : 0;
      const int peer = step == 0 ? 0 : (rank.rank + step) % rank.ranks;
      operations.push_back({kind, at, at + room.count, kCount, DataType::float32, {}, peer});
      at += 2 * room.count;
    }
  }
};

// Adds a table: a row for each operation, a column for each capture mode. Each cell is a case of
// `aim`, on new ranks (ScenarioReport::run_case): `run` with this `variant`.
using MatrixCase = void (*)(BenchRank&, const Asked&, CaptureMode, bool variant);
void run_matrix(ScenarioReport& report, const OpenRanks& open, const RanksOptions& wanted, Aim& aim,
                const std::string& well, const std::string& title, MatrixCase run, bool variant) {
  ScenarioTable table{title, {"operation", "global", "thread-local", "relaxed"}};
  for (const Asked& asked : every_operation()) {
    std::vector<std::string> row{asked.name};
    for (const CaptureMode mode :
         {CaptureMode::global, CaptureMode::thread_local_, CaptureMode::relaxed}) {
      row.push_back(report.run_case(open, wanted, aim, well,
                                    [&](BenchRank& rank) { run(rank, asked, mode, variant); }));
    }
    table.rows.push_back(std::move(row));
  }
  report.tables.push_back(std::move(table));
}

// Captures it as the first of all that the communicator does, and launches the graph. Where it
// should be refused: that it was, and that the capture was whole and the graph ran all the same.
void capture_first(BenchRank& rank, const Asked& asked, CaptureMode mode, bool refused) {
  GraphPool pool(*rank.heap);
  CaptureScope capture = need(CaptureScope::begin(pool, rank.compute, mode));
  Ready ready(asked, rank);
  rank.kernels->fill(rank.compute, ready.operations, 1);
  const Result<Work> work = rank.comm->run(ready.operations, rank.compute);
  if (refused && work) throw Exception(ErrorCode::capture, "it was not refused");
  if (!refused || work.error().code() != ErrorCode::capture) (void)need(work);
  ready.memory.reset();
  Graph graph = need(refused ? capture.end() : rank.comm->end_capture(capture));
  need(refused ? graph.launch(rank.compute) : rank.comm->launch(graph, rank.compute));
  rank.kernels->finish(rank.compute);
}

// Finds out how many elements are wrong. On simulated devices nobody looks.
void check(BenchRank& rank, const std::vector<Operation>& operations, std::uint64_t seed) {
  const auto wrong = rank.kernels->count_wrong(rank.compute, operations, seed).value_or(0);
  if (wrong > 0) throw Exception(ErrorCode::capture, fmt::format("{} elements are wrong", wrong));
}

void fill_and_run(BenchRank& rank, const std::vector<Operation>& operations, Where where,
                  std::uint64_t seed) {
  rank.kernels->fill(rank.compute, operations, seed);
  need(need(rank.comm->run(operations, where)).wait(rank.compute));
}

// The graph works on memory of its own pool as well: what is captured is a fill, the operations,
// and their end. Simulated, it must be right in any order that its edges allow.
void run_captured(BenchRank& rank, const std::vector<Operation>& operations, Where where,
                  CaptureMode mode) {
  GraphPool pool(*rank.heap);
  Graph graph =
      capture_graph(rank, pool, mode, [&] { fill_and_run(rank, operations, where, kCaptured); });
  auto* const simulated = dynamic_cast<SimDevice*>(rank.device.get());
  for (std::uint64_t seed = 1; simulated != nullptr && seed <= kOrders; ++seed) {
    if (simulated->replay_in_random_order(graph.graph(), seed) == 0) continue;
    throw Exception(ErrorCode::capture,
                    "an order that the graph allows reads what was not written");
  }
  for (int launch = 0; launch < 3; ++launch) need(rank.comm->launch(graph, rank.compute));
  check(rank, operations, kCaptured);
}

// `first`: captured before it ever ran eagerly, with overlap; else after, on the caller's stream.
void compare(BenchRank& rank, const Asked& asked, CaptureMode mode, bool first) {
  const Ready ready(asked, rank);
  const std::vector<Operation>& operations = ready.operations;
  const Where where = first ? overlapped(rank.compute) : Where(rank.compute);
  if (first) run_captured(rank, operations, where, mode);
  fill_and_run(rank, operations, where, kEager);
  check(rank, operations, kEager);
  if (!first) run_captured(rank, operations, where, mode);
}

}  // namespace

ScenarioReport run_scenario_a(const OpenRanks& open) {
  ScenarioReport report{.name = "A", .title = "a captured all-reduce that fails"};
  Aim captured{.what = "first operations captured and run", .unit = "cases"};
  Aim refused{.what = "refused, and the capture whole, where it was not prepared", .unit = "cases"};
  run_matrix(report, open, {}, captured, "ok",
             "The first operation, captured, after prepare() and with no warm-up", capture_first,
             /*refused=*/false);
  run_matrix(report, open, {.prepare = false}, refused, "refused, capture whole",
             "The same without prepare(): refused before anything is spoilt", capture_first,
             /*refused=*/true);
  report.aims = {captured, refused};
  return report;
}

ScenarioReport run_scenario_d(const OpenRanks& open) {
  ScenarioReport report{.name = "D", .title = "everything NCCL lets one capture"};
  Aim aim{.what = "cases equal to eager", .unit = "cases"};
  for (const bool first : {true, false}) {
    run_matrix(report, open, {}, aim, "ok",
               first ? "Captured, with overlap, then compared with eager"
                     : "Eager, on the caller's stream, then compared with captured",
               compare, first);
  }
  report.aims.push_back(aim);
  report.notes.emplace_back(
      "on simulated devices no data moves: equal means that no order that the graph's edges allow "
      "(100 of them) reads another write than the eager order, that no access races, and that the "
      "ranks asked for the same");
  return report;
}

}  // namespace weir
