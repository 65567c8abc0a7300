// SPDX-License-Identifier: Apache-2.0
// The operations that NCCL offers: one value for each collective and for send and receive, with
// what it reads and writes. Counts and buffer layouts are NCCL's own. Source: NCCL 2.28 user guide,
// "Collective Communication Functions".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// In the order of ncclDataType_t.
enum class DataType {
  int8,
  uint8,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  float32,
  float64,
  bfloat16,
  float8_e4m3,
  float8_e5m2,
};
inline constexpr int kDataTypes = static_cast<int>(DataType::float8_e5m2) + 1;
std::string_view name_of(DataType type);
Bytes size_of(DataType type);

// How the ranks' elements become one. In the order of ncclRedOp_t.
enum class ReduceOp { sum, product, max, min, average };
inline constexpr int kReduceOps = static_cast<int>(ReduceOp::average) + 1;
std::string_view name_of(ReduceOp op);

enum class OperationKind {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  all_to_all,
  gather,
  scatter,
  send,
  receive,
};
inline constexpr int kOperationKinds = static_cast<int>(OperationKind::receive) + 1;
std::string_view name_of(OperationKind kind);  // "all-reduce"

// One call. `count` is in elements, as in NCCL: what a rank sends in all_gather, gather and send;
// what a rank sends to each other rank in all_to_all; what a rank receives in reduce_scatter,
// scatter and receive; the whole array in all_reduce, broadcast and reduce.
struct Operation {
  OperationKind kind = OperationKind::all_reduce;
  const void* send = nullptr;  // not for receive
  void* receive = nullptr;     // not for send
  std::uint64_t count = 0;
  DataType type = DataType::float32;
  ReduceOp reduction = ReduceOp::sum;  // all_reduce, reduce_scatter, reduce
  int peer = 0;  // broadcast, reduce, gather, scatter: the root; send, receive: the other rank

  // How much `rank` of `ranks` reads at `send` and writes at `receive`; zero: it does not use that
  // buffer.
  Bytes reads(int ranks, int rank) const;
  Bytes writes(int ranks, int rank) const;
  // Has one of the buffers a part for each rank?
  bool has_parts() const;
  // Does the operation connect pairs of ranks, rather than all ranks in rings and trees?
  bool is_point_to_point() const;
  // "all-reduce of 64 MiB of float32 (sum)", "send of 4 KiB of int8 to rank 3".
  std::string describe(int ranks) const;
  // May `rank` of `ranks` ask for this operation? Errors: invalid_argument, which names what is
  // wrong.
  Status check(int ranks, int rank) const;
};

}  // namespace weir
