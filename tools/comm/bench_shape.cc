// SPDX-License-Identifier: Apache-2.0
#include "comm/bench_shape.h"

#include <algorithm>
#include <array>

namespace weir {
namespace {

constexpr Bytes kElement = 4_B, kPart = 16_B;

struct Definition {
  std::string_view name;
  OperationKind kind;
  bool split;                // the array is cut in parts, one a rank
  double factor_over_ranks;  // bus bandwidth: this times (n-1)/n; 0: the algorithm's own
};
constexpr std::array<Definition, kBenchOperations> kDefinitions{{
    {"all_reduce", OperationKind::all_reduce, false, 2},
    {"all_gather", OperationKind::all_gather, true, 1},
    {"reduce_scatter", OperationKind::reduce_scatter, true, 1},
    {"alltoall", OperationKind::all_to_all, true, 1},
    {"sendrecv", OperationKind::send, false, 0},
}};
const Definition& of(BenchOperation operation) {
  return kDefinitions[static_cast<std::size_t>(operation)];
}

std::byte* at(void* memory, Bytes offset) { return static_cast<std::byte*>(memory) + offset.count; }

}  // namespace

std::string_view name_of(BenchOperation operation) { return of(operation).name; }
bool reduces(BenchOperation operation) {
  return operation == BenchOperation::all_reduce || operation == BenchOperation::reduce_scatter;
}
bool is_checked(BenchOperation operation, bool in_place) {
  return !in_place ||
         (operation != BenchOperation::all_to_all && operation != BenchOperation::send_receive);
}

BenchShape shape_of(BenchOperation operation, Bytes size, int ranks) {
  const Definition& definition = of(operation);
  const auto parts = static_cast<std::uint64_t>(ranks);
  const Bytes unit = definition.split
                         ? kPart * (size / kElement * kElement.count / parts / kPart.count)
                         : kElement * (size / kElement);
  const Operation one{.kind = definition.kind, .count = unit / kElement};
  BenchShape shape{
      .count = one.count, .send = one.reads(ranks, 0), .receive = one.writes(ranks, 0)};
  if (operation == BenchOperation::send_receive) shape.receive = unit;
  if (shape.receive > shape.send) shape.send_offset = unit;
  if (shape.send > shape.receive) shape.receive_offset = unit;
  return shape;
}

Bandwidth bandwidth_of(BenchOperation operation, std::uint64_t count, double seconds, int ranks) {
  const Definition& definition = of(operation);
  const double elements = static_cast<double>(count) * (definition.split ? ranks : 1);
  const double bytes = elements * static_cast<double>(kElement.count);
  Bandwidth bandwidth;
  bandwidth.algorithm = seconds > 0 ? bytes / 1e9 / seconds : 0;
  const double factor =
      definition.factor_over_ranks > 0 ? definition.factor_over_ranks * (ranks - 1) / ranks : 1;
  bandwidth.bus = bandwidth.algorithm * factor;
  return bandwidth;
}

std::vector<Operation> operations_of(BenchOperation what, const BenchShape& shape, bool in_place,
                                     int rank, int ranks, void* send, void* receive) {
  const auto number = static_cast<std::uint64_t>(rank);
  Operation operation{
      .kind = of(what).kind, .send = send, .receive = receive, .count = shape.count};
  if (in_place) {
    operation.send = at(receive, shape.send_offset * number);
    operation.receive = at(receive, shape.receive_offset * number);
  }
  if (what != BenchOperation::send_receive) return {operation};
  Operation other = operation;
  operation.receive = nullptr;
  operation.peer = (rank + 1) % ranks;
  other.kind = OperationKind::receive;
  other.send = nullptr;
  other.peer = (rank - 1 + ranks) % ranks;
  return {operation, other};
}

Bytes shift_of(const BenchShape& shape, Bytes most, std::uint64_t iteration) {
  const Bytes size = shape.size();
  const std::uint64_t steps = size == 0_B ? 1 : std::max<std::uint64_t>(most / size, 1);
  return size * (iteration % steps);
}

}  // namespace weir
