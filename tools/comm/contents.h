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
// What `rank` of `ranks` has to put there before, and must find there after, these operations of
// one group.
std::vector<Piece> sent_pieces(std::span<const Operation> operations, int rank, int ranks,
                               std::uint64_t seed);
std::vector<Piece> received_pieces(std::span<const Operation> operations, int rank, int ranks,
                                   std::uint64_t seed);

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

}  // namespace weir
