#include "comm/bench_shape.h"

#include <algorithm>
#include <array>

namespace weir {
namespace {

enum class Part { whole, one, each };  // of the array of `count` for all ranks
struct Definition {
  std::string_view name;
  OperationKind kind;
  bool split;  // the array is cut in parts, one a rank
  Part sends, receives;
  bool moves_send, moves_receive;  // in place: at rank's part
  bool reduces, rooted;
  double factor_over_ranks;  // bus bandwidth: this times (n-1)/n; 0: the algorithm's own
};
using enum Part;
constexpr std::array<Definition, kBenchOperations> kDefinitions{{
    {"all_reduce", OperationKind::all_reduce, false, whole, whole, false, false, true, false, 2},
    {"all_gather", OperationKind::all_gather, true, one, each, true, false, false, false, 1},
    {"reduce_scatter", OperationKind::reduce_scatter, true, each, one, false, true, true, false, 1},
    {"broadcast", OperationKind::broadcast, false, whole, whole, false, false, false, true, 0},
    {"reduce", OperationKind::reduce, false, whole, whole, false, false, true, true, 0},
    {"alltoall", OperationKind::all_to_all, true, each, each, false, false, false, false, 1},
    {"sendrecv", OperationKind::send, false, whole, whole, false, false, false, false, 0},
    {"gather", OperationKind::gather, true, one, each, true, false, false, true, 1},
    {"scatter", OperationKind::scatter, true, each, one, false, true, false, true, 1},
}};
const Definition& of(BenchOperation operation) {
  return kDefinitions[static_cast<std::size_t>(operation)];
}

std::byte* at(void* memory, Bytes offset) { return static_cast<std::byte*>(memory) + offset.count; }

}  // namespace

std::string_view name_of(BenchOperation operation) { return of(operation).name; }
bool has_root(BenchOperation operation) { return of(operation).rooted; }
bool reduces(BenchOperation operation) { return of(operation).reduces; }
bool is_checked(BenchOperation operation, bool in_place) {
  return !in_place ||
         (operation != BenchOperation::all_to_all && operation != BenchOperation::send_receive);
}

BenchShape shape_of(BenchOperation operation, Bytes size, DataType type, int ranks) {
  const Definition& definition = of(operation);
  const Bytes element = size_of(type);
  const auto parts = static_cast<std::uint64_t>(ranks);
  BenchShape shape;
  shape.count = size / element;
  if (definition.split) {
    const std::uint64_t grain = 16 / element.count;
    shape.count = shape.count / parts / grain * grain;
  }
  const Bytes unit = element * shape.count;
  const auto bytes = [&](Part part) { return part == each ? unit * parts : unit; };
  shape.send = bytes(definition.sends);
  shape.receive = bytes(definition.receives);
  if (definition.moves_send) shape.send_offset = unit;
  if (definition.moves_receive) shape.receive_offset = unit;
  return shape;
}

Bandwidth bandwidth_of(BenchOperation operation, std::uint64_t count, DataType type, double seconds,
                       int ranks) {
  const Definition& definition = of(operation);
  const double elements = static_cast<double>(count) * (definition.split ? ranks : 1);
  const double bytes = elements * static_cast<double>(size_of(type).count);
  Bandwidth bandwidth;
  bandwidth.algorithm = seconds > 0 ? bytes / 1e9 / seconds : 0;
  const double factor =
      definition.factor_over_ranks > 0 ? definition.factor_over_ranks * (ranks - 1) / ranks : 1;
  bandwidth.bus = bandwidth.algorithm * factor;
  return bandwidth;
}

std::vector<Operation> operations_of(const BenchCase& what, const BenchShape& shape, bool in_place,
                                     int rank, int ranks, void* send, void* receive) {
  const auto number = static_cast<std::uint64_t>(rank);
  Operation operation{.kind = of(what.operation).kind,
                      .send = send,
                      .receive = receive,
                      .count = shape.count,
                      .type = what.type,
                      .reduction = reduces(what.operation) ? what.reduction : Reduction{},
                      .peer = has_root(what.operation) ? what.root : 0};
  if (in_place) {
    operation.send = at(receive, shape.send_offset * number);
    operation.receive = at(receive, shape.receive_offset * number);
  }
  if (what.operation != BenchOperation::send_receive) return {operation};
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
