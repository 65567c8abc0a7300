// SPDX-License-Identifier: Apache-2.0
// What the benchmark and the scenarios put into buffers, and what must be in them after an
// operation: each element follows from who sent it, its place, and a seed, so that what went to the
// wrong place, or was reduced wrongly, is found.
//
// Elements are float32, and reductions sums, of numbers so small that a sum is exact in any order.
#pragma once

#include <cstdint>

#include "weir/comm/operation.h"

namespace weir {

// Shared with kernels.
#ifdef __CUDACC__
#define WEIR_ON_BOTH __host__ __device__
#else
#define WEIR_ON_BOTH
#endif

// What one rank sends by an operation, and has to receive.
struct Contents {
  Operation operation;
  int rank = 0, ranks = 1;
  std::uint64_t seed = 0;

  // The element number `index` of what this rank has at operation.send.
  WEIR_ON_BOTH float to_send(std::uint64_t index) const {
    return sent(rank, index, operation.kind == OperationKind::send ? operation.peer : kNobody);
  }

  // The element number `index` that must be at operation.receive.
  WEIR_ON_BOTH float to_receive(std::uint64_t index) const {
    const std::uint64_t count = operation.count;
    const std::uint64_t mine = count * static_cast<std::uint64_t>(rank);
    switch (operation.kind) {
      case OperationKind::all_reduce:
      case OperationKind::reduce:
        return sum(index);
      case OperationKind::reduce_scatter:
        return sum(mine + index);
      case OperationKind::all_gather:
      case OperationKind::gather:
        return sent(static_cast<int>(index / count), index % count);
      case OperationKind::all_to_all:
        return sent(static_cast<int>(index / count), mine + index % count);
      case OperationKind::broadcast:
        return sent(operation.peer, index);
      case OperationKind::scatter:
        return sent(operation.peer, mine + index);
      case OperationKind::receive:
        return sent(operation.peer, index, rank);
      case OperationKind::send:
        break;
    }
    return 0;
  }

 private:
  static constexpr int kNobody = -1;

  // The element number `index` of what `sender` sends: 0 to 100. A receive has what its send had,
  // and a group one of each for a pair. One step of SplitMix64 (Steele, Lea and Flood 2014)
  // decides.
  WEIR_ON_BOTH float sent(int sender, std::uint64_t index, int receiver = kNobody) const {
    const bool receives = operation.kind == OperationKind::receive;
    const auto kind = static_cast<std::uint64_t>(receives ? OperationKind::send : operation.kind);
    std::uint64_t z = seed * 0xD1342543DE82EF95u + kind * 0xA24BAED4963EE407u +
                      static_cast<std::uint64_t>(sender + 2) * 0x9FB21C651E98DF25u +
                      static_cast<std::uint64_t>(receiver + 2) * 0xD6E8FEB86659FD93u +
                      (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return static_cast<float>(z % 101);
  }

  WEIR_ON_BOTH float sum(std::uint64_t index) const {
    float sum = 0;
    for (int sender = 0; sender < ranks; ++sender) sum += sent(sender, index);
    return sum;
  }
};

#undef WEIR_ON_BOTH

}  // namespace weir
