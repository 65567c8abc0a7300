// SPDX-License-Identifier: Apache-2.0
#include "comm/every_operation.h"

#include <utility>

namespace weir {
namespace {

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

}  // namespace

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

}  // namespace weir
