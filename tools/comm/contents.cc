// SPDX-License-Identifier: Apache-2.0
#include "comm/contents.h"

#include <algorithm>

namespace weir {
namespace {

// The largest of the integers that the type has without a gap.
double exact_up_to(DataType type) {
  switch (type) {
    case DataType::float8_e5m2:
      return 8;
    case DataType::float8_e4m3:
      return 16;
    case DataType::bfloat16:
      return 256;
    case DataType::float16:
      return 2048;
    default:
      return 1 << 24;  // integers wrap, the same on both sides
  }
}

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter;
}

void choose_numbers(Contents& contents, const Operation& operation) {
  const Reduction& reduction = operation.reduction;
  contents.op = reduction.op;
  contents.premul = reduction.premul.value_or(1);
  const double exact = exact_up_to(operation.type);
  if (reduction.op == ReduceOp::max || reduction.op == ReduceOp::min) return;
  if (reduction.op == ReduceOp::product) {
    contents.numbers = Numbers::product;
    return;
  }
  if (reduction.op == ReduceOp::average) {
    // Each may be multiplied by 1 / ranks first, which is rounded.
    contents.numbers = Numbers::average;
    contents.tolerance = (contents.ranks & (contents.ranks - 1)) == 0 ? 0 : 4 / exact;
    if (contents.ranks > exact) contents.tolerance = contents.ranks / exact;
    return;
  }
  contents.numbers = Numbers::summed;
  const double room = exact / (contents.ranks * contents.premul);
  contents.most = static_cast<int>(std::clamp(room, 1.0, 3.0));
  if (room < 1) contents.tolerance = contents.ranks / exact;
}

// Those of each pair of ranks are counted apart: the nth that one sends is the nth that the other
// receives.
std::uint64_t number_of(std::span<const Operation> operations, std::size_t which) {
  const Operation& operation = operations[which];
  if (operation.kind != OperationKind::send && operation.kind != OperationKind::receive) {
    return which;
  }
  return static_cast<std::uint64_t>(
      std::count_if(operations.begin(), operations.begin() + static_cast<std::ptrdiff_t>(which),
                    [&](const Operation& earlier) {
                      return earlier.kind == operation.kind && earlier.peer == operation.peer;
                    }));
}

Contents contents_of(std::span<const Operation> operations, std::size_t which, int ranks,
                     std::uint64_t seed) {
  Contents contents;
  contents.seed = seed;
  contents.operation = number_of(operations, which);
  contents.ranks = ranks;
  if (reduces(operations[which].kind)) choose_numbers(contents, operations[which]);
  return contents;
}

std::byte* bytes_at(const void* memory) {
  return static_cast<std::byte*>(const_cast<void*>(memory));
}

// Of one sender, or of all, reduced; in all_gather, gather and all_to_all a part of each.
void add_received(const Operation& operation, Contents contents, int rank, int ranks,
                  std::vector<Piece>& pieces) {
  using enum OperationKind;
  const OperationKind kind = operation.kind;
  if (kind == reduce_scatter || kind == scatter || kind == all_to_all) {  // what was sent is parted
    contents.first = operation.count * static_cast<std::uint64_t>(rank);
  }
  if (kind == receive) contents.receiver = rank;
  const bool is_of_each = kind == all_gather || kind == gather || kind == all_to_all;
  const Bytes bytes = size_of(operation.type) * operation.count;
  for (int part = 0; part < (is_of_each ? ranks : 1); ++part) {
    contents.sender = is_of_each ? part : reduces(kind) ? Contents::kEveryRank : operation.peer;
    const Bytes offset = bytes * static_cast<std::uint64_t>(part);
    pieces.push_back(
        {bytes_at(operation.receive) + offset.count, operation.count, operation.type, contents});
  }
}

}  // namespace

std::vector<Piece> sent_pieces(std::span<const Operation> operations, int rank, int ranks,
                               std::uint64_t seed) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    const Bytes bytes = operation.reads(ranks, rank);
    if (bytes == 0_B) continue;
    Contents contents = contents_of(operations, i, ranks, seed);
    contents.sender = rank;
    if (operation.kind == OperationKind::send) contents.receiver = operation.peer;
    pieces.push_back(
        {bytes_at(operation.send), bytes / size_of(operation.type), operation.type, contents});
  }
  return pieces;
}

std::vector<Piece> received_pieces(std::span<const Operation> operations, int rank, int ranks,
                                   std::uint64_t seed) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (operations[i].writes(ranks, rank) == 0_B) continue;
    add_received(operations[i], contents_of(operations, i, ranks, seed), rank, ranks, pieces);
  }
  return pieces;
}

}  // namespace weir
