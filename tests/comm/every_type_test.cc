// SPDX-License-Identifier: Apache-2.0
// Every operation with every type and every reduction, odd counts, and none: on simulated ranks,
// whose accesses are checked for races, and on GPUs where there are two, where each element is
// checked too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/block.h"
#include "comm/ranks.h"
#include "weir/cuda_device.h"

namespace weir {
namespace {

using testing::IsEmpty;

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter;
}
bool is_floating(DataType type) {
  const std::string_view name = name_of(type);
  return name.starts_with("float") || name.starts_with("bfloat");
}

std::vector<Reduction> reductions_of(OperationKind kind, DataType type) {
  if (!reduces(kind)) return {{}};
  std::vector<Reduction> all;
  for (int op = 0; op < kReduceOps; ++op) all.push_back({static_cast<ReduceOp>(op)});
  if (is_floating(type)) all.push_back(Reduction::premul_sum(2));
  return all;
}

// One operation; a send with the receive that belongs to it. In place as operation.h allows.
std::vector<Operation> operations_of(const Operation& what, const BenchRank& rank, bool in_place,
                                     std::byte* send, std::byte* receive) {
  const auto number = static_cast<std::uint64_t>(rank.rank);
  const Bytes part = size_of(what.type) * what.count;
  Operation operation = what;
  operation.send = in_place ? receive : send;
  operation.receive = receive;
  switch (what.kind) {
    case OperationKind::all_gather:
    case OperationKind::gather:
      if (in_place) operation.send = receive + (part * number).count;
      break;
    case OperationKind::reduce_scatter:
    case OperationKind::scatter:
      if (in_place) operation.receive = receive + (part * number).count;
      break;
    case OperationKind::send: {
      Operation other = operation;
      operation.peer = (rank.rank + 1) % rank.ranks;
      other.kind = OperationKind::receive;
      other.peer = (rank.rank + rank.ranks - 1) % rank.ranks;
      return {operation, other};
    }
    default:
      break;
  }
  return {operation};
}

// How many cases ran; wrong elements are failures.
Result<int> run_all(BenchRank& rank, bool captured) {
  constexpr std::uint64_t kCounts[] = {0, 1, 417, 1667};
  const Bytes most = Bytes{8 * 1667} * static_cast<std::uint64_t>(rank.ranks);
  Result<Block> send = Block::allocate(rank.heap, most, rank.compute);
  Result<Block> receive = Block::allocate(rank.heap, most, rank.compute);
  if (!send || !receive) return send ? receive.error() : send.error();
  int cases = 0;
  const auto run = [&](const Operation& what, bool in_place) -> Status {
    const std::vector<Operation> operations =
        operations_of(what, rank, in_place, static_cast<std::byte*>(send->get()),
                      static_cast<std::byte*>(receive->get()));
    const auto seed = static_cast<std::uint64_t>(++cases);
    if (Status filled = rank.kernels.fill(rank.compute, operations, seed); !filled) return filled;
    const auto queue = [&]() -> Status {
      const Result<Work> work = rank.comm.run(operations, rank.compute);
      return work ? Status() : Status(work.error());
    };
    if (captured) {
      GraphPool pool(rank.heap);
      Result<Graph> graph = capture_graph(rank, pool, CaptureMode::thread_local_, queue);
      if (!graph) return std::move(graph).error();
      if (Status launched = rank.comm.launch(*graph, rank.compute); !launched) return launched;
    } else if (Status queued = queue(); !queued) {
      return queued;
    }
    const auto wrong = rank.kernels.count_wrong(rank.compute, operations, seed);
    if (!wrong) return wrong.error();
    EXPECT_EQ(wrong->value_or(0), 0u)
        << what.describe(rank.ranks) << (in_place ? ", in place" : "") << ", rank " << rank.rank;
    return {};
  };
  for (int number = 0; number < kOperationKinds - 1; ++number) {  // a receive comes with its send
    const auto kind = static_cast<OperationKind>(number);
    for (int type = 0; type < kDataTypes; ++type) {
      for (const Reduction& reduction : reductions_of(kind, static_cast<DataType>(type))) {
        for (const std::uint64_t count : kCounts) {
          for (const bool in_place : {false, true}) {
            // What either should give is not defined.
            const bool is_pair = kind == OperationKind::all_to_all || kind == OperationKind::send;
            if (in_place && is_pair) continue;
            const Operation what{.kind = kind,
                                 .count = count,
                                 .type = static_cast<DataType>(type),
                                 .reduction = reduction,
                                 .peer = number % rank.ranks};
            if (Status ran = run(what, in_place); !ran) return std::move(ran).error();
          }
        }
      }
    }
  }
  return cases;
}

void expect_all(Ranks& ranks, bool captured) {
  const Status ran = ranks.on_all([&](BenchRank& rank) -> Status {
    const Result<int> cases = run_all(rank, captured);
    if (!cases) return cases.error();
    // 3 kinds reduce, by 5 ways or 6; 4 do not, and 2 are never in place; 4 counts each.
    EXPECT_EQ(*cases, 4 * (2 * 3 * (12 * 5 + 6) + 2 * 4 * 12 + 2 * 12));
    return {};
  });
  EXPECT_TRUE(ran.ok()) << (ran.ok() ? "" : ran.error().message());
  EXPECT_THAT(ranks.close(), IsEmpty());
}

TEST(EveryType, OfEveryOperationIsReducedAndMovedOnSimulatedRanks) {
  Result<std::unique_ptr<Ranks>> ranks = open_sim_ranks({.ranks = 3}, {});
  ASSERT_TRUE(ranks.ok());
  expect_all(**ranks, false);
}

TEST(EveryType, OfEveryOperationIsExactOnGpus) {
  const Result<int> gpus = CudaDevice::count();
  if (!gpus || *gpus < 2) GTEST_SKIP() << "two GPUs are needed";
  const Result<OpenRanks> open = cuda_ranks(process_environment(), std::min(*gpus, 4));
  if (!open && open.error().code() == ErrorCode::unavailable) {
    GTEST_SKIP() << open.error().message();
  }
  ASSERT_TRUE(open.ok()) << open.error().message();
  for (const bool captured : {false, true}) {
    Result<std::unique_ptr<Ranks>> ranks = (*open)({});
    ASSERT_TRUE(ranks.ok()) << ranks.error().message();
    expect_all(**ranks, captured);
  }
}

}  // namespace
}  // namespace weir
