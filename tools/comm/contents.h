// SPDX-License-Identifier: Apache-2.0
// What the benchmark and the scenarios put into buffers, and what must be in them after an
// operation: each element follows from who sent it, its place, and a seed, so that what went to the
// wrong place, or was reduced wrongly, is found.
//
// Numbers are small enough that reductions are exact, whatever their order: a sum of `ranks`
// elements is a number that the type has. Where there are too many ranks for that,
// Contents::tolerance says how far a sum may be off.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weir/comm/operation.h"

namespace weir {

// How elements are chosen.
enum class Numbers : std::uint8_t {
  moved,    // 0 to 100
  summed,   // 0 to Contents::most
  product,  // 1 or 2, and 1 from rank 8 on
  average,  // 0, or the number of ranks
};

struct Contents {
  std::uint64_t seed = 0;
  std::uint64_t operation = 0;  // its number in the list; of send and receive: between two ranks
  int sender = 0;               // kEveryRank: the elements of all, reduced
  int receiver = -1;            // of send and receive; -1: it is no one rank's
  std::uint64_t first = 0;      // the place, in what was sent, of the first element
  Numbers numbers = Numbers::moved;
  int most = 0;
  ReduceOp op = ReduceOp::sum;
  double premul = 1;
  int ranks = 1;
  double tolerance = 0;  // times what it should be

  static constexpr int kEveryRank = -1;
};

// Elements side by side.
struct Piece {
  std::byte* at = nullptr;
  std::uint64_t count = 0;
  DataType type = DataType::float32;
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

// The element number `index` of what `sender` sends. One step of SplitMix64 (Steele, Lea and Flood
// 2014) decides.
WEIR_ON_BOTH inline double sent_element(const Contents& of, int sender, std::uint64_t index) {
  std::uint64_t z = of.seed * 0xD1342543DE82EF95u + of.operation * 0xA24BAED4963EE407u +
                    static_cast<std::uint64_t>(sender + 2) * 0x9FB21C651E98DF25u +
                    static_cast<std::uint64_t>(of.receiver + 2) * 0xD6E8FEB86659FD93u +
                    (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  switch (of.numbers) {
    case Numbers::moved:
      return static_cast<double>(z % 101);
    case Numbers::summed:
      return static_cast<double>(z % static_cast<std::uint64_t>(of.most + 1));
    case Numbers::product:
      return sender < 8 && z % 2 == 0 ? 2 : 1;
    case Numbers::average:
      return z % 2 == 0 ? static_cast<double>(of.ranks) : 0;
  }
  return 0;
}

// The element number `index` of a piece, counted from its first.
WEIR_ON_BOTH inline double element_of(const Contents& of, std::uint64_t index) {
  if (of.sender != Contents::kEveryRank) return sent_element(of, of.sender, of.first + index);
  double all = of.premul * sent_element(of, 0, of.first + index);
  for (int rank = 1; rank < of.ranks; ++rank) {
    const double one = of.premul * sent_element(of, rank, of.first + index);
    if (of.op == ReduceOp::sum || of.op == ReduceOp::average) all += one;
    if (of.op == ReduceOp::product) all *= one;
    if (of.op == ReduceOp::max) all = one > all ? one : all;
    if (of.op == ReduceOp::min) all = one < all ? one : all;
  }
  return of.op == ReduceOp::average ? all / of.ranks : all;
}

#undef WEIR_ON_BOTH

}  // namespace weir
