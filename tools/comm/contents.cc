// SPDX-License-Identifier: Apache-2.0
#include "comm/contents.h"

namespace weir {
namespace {

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter;
}

// A receive has what its send had.
Contents contents_of(const Operation& operation, int ranks, std::uint64_t seed) {
  const bool receives = operation.kind == OperationKind::receive;
  const OperationKind kind = receives ? OperationKind::send : operation.kind;
  return {.seed = seed, .operation = static_cast<std::uint64_t>(kind), .ranks = ranks};
}

float* elements_at(const void* memory) { return static_cast<float*>(const_cast<void*>(memory)); }

// Of one sender, or of all, summed; in all_gather, gather and all_to_all a part of each.
void add_received(const Operation& operation, Contents contents, int rank, int ranks,
                  std::vector<Piece>& pieces) {
  using enum OperationKind;
  const OperationKind kind = operation.kind;
  if (kind == reduce_scatter || kind == scatter || kind == all_to_all) {  // what was sent is parted
    contents.first = operation.count * static_cast<std::uint64_t>(rank);
  }
  if (kind == receive) contents.receiver = rank;
  const bool is_of_each = kind == all_gather || kind == gather || kind == all_to_all;
  for (int part = 0; part < (is_of_each ? ranks : 1); ++part) {
    contents.sender = is_of_each ? part : reduces(kind) ? Contents::kEveryRank : operation.peer;
    const std::uint64_t offset = operation.count * static_cast<std::uint64_t>(part);
    pieces.push_back({elements_at(operation.receive) + offset, operation.count, contents});
  }
}

}  // namespace

std::vector<Piece> sent_pieces(std::span<const Operation> operations, int rank, int ranks,
                               std::uint64_t seed) {
  std::vector<Piece> pieces;
  for (const Operation& operation : operations) {
    const Bytes bytes = operation.reads(ranks, rank);
    if (bytes == 0_B) continue;
    Contents contents = contents_of(operation, ranks, seed);
    contents.sender = rank;
    if (operation.kind == OperationKind::send) contents.receiver = operation.peer;
    pieces.push_back({elements_at(operation.send), bytes / size_of(operation.type), contents});
  }
  return pieces;
}

std::vector<Piece> received_pieces(std::span<const Operation> operations, int rank, int ranks,
                                   std::uint64_t seed) {
  std::vector<Piece> pieces;
  for (const Operation& operation : operations) {
    if (operation.writes(ranks, rank) == 0_B) continue;
    add_received(operation, contents_of(operation, ranks, seed), rank, ranks, pieces);
  }
  return pieces;
}

}  // namespace weir
