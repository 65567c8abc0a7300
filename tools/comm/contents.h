// SPDX-License-Identifier: Apache-2.0
// What the benchmark and the scenarios put into buffers, and what must be in them after an
// operation: each element follows from who sent it, its place, and a seed, so that what went to the
// wrong place, or was reduced wrongly, is found.
//
// Elements are float32, and reductions sums, of numbers so small that a sum is exact in any order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weir/comm/operation.h"

namespace weir {

struct Contents {
  std::uint64_t seed = 0;
  std::uint64_t operation = 0;  // its kind: a group has one of each, of send and receive for a pair
  int sender = 0;               // kEveryRank: the elements of all, summed
  int receiver = -1;            // of send and receive; -1: it is no one rank's
  std::uint64_t first = 0;      // the place, in what was sent, of the first element
  int ranks = 1;

  static constexpr int kEveryRank = -1;
};

// Elements side by side.
struct Piece {
  float* at = nullptr;
  std::uint64_t count = 0;
  Contents contents;
};
// Shared with kernels.
#ifdef __CUDACC__
#define WEIR_ON_BOTH __host__ __device__
#else
#define WEIR_ON_BOTH
#endif

// The element number `index` of what `sender` sends: 0 to 100. One step of SplitMix64 (Steele, Lea
// and Flood 2014) decides.
WEIR_ON_BOTH inline float sent_element(const Contents& of, int sender, std::uint64_t index) {
  std::uint64_t z = of.seed * 0xD1342543DE82EF95u + of.operation * 0xA24BAED4963EE407u +
                    static_cast<std::uint64_t>(sender + 2) * 0x9FB21C651E98DF25u +
                    static_cast<std::uint64_t>(of.receiver + 2) * 0xD6E8FEB86659FD93u +
                    (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<float>(z % 101);
}

// The element number `index` of a piece, counted from its first.
WEIR_ON_BOTH inline float element_of(const Contents& of, std::uint64_t index) {
  if (of.sender != Contents::kEveryRank) return sent_element(of, of.sender, of.first + index);
  float sum = 0;
  for (int rank = 0; rank < of.ranks; ++rank) sum += sent_element(of, rank, of.first + index);
  return sum;
}

#undef WEIR_ON_BOTH

inline bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter;
}

// A receive has what its send had.
inline Contents contents_of(const Operation& operation, int ranks, std::uint64_t seed) {
  const bool receives = operation.kind == OperationKind::receive;
  const OperationKind kind = receives ? OperationKind::send : operation.kind;
  return {.seed = seed, .operation = static_cast<std::uint64_t>(kind), .ranks = ranks};
}

inline float* elements_at(const void* memory) {
  return static_cast<float*>(const_cast<void*>(memory));
}

// Of one sender, or of all, summed; in all_gather, gather and all_to_all a part of each.
inline void add_received(const Operation& operation, Contents contents, int rank, int ranks,
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

// What `rank` of `ranks` has to put there before, and must find there after, these operations of
// one group.
inline std::vector<Piece> sent_pieces(std::span<const Operation> operations, int rank, int ranks,
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

inline std::vector<Piece> received_pieces(std::span<const Operation> operations, int rank,
                                          int ranks, std::uint64_t seed) {
  std::vector<Piece> pieces;
  for (const Operation& operation : operations) {
    if (operation.writes(ranks, rank) == 0_B) continue;
    add_received(operation, contents_of(operation, ranks, seed), rank, ranks, pieces);
  }
  return pieces;
}

}  // namespace weir
