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

// The types of elements, in the order of ncclDataType_t.
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

// How a reduction combines the ranks' elements, in the order of ncclRedOp_t.
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

// One operation, as one rank asks for it. `count` is a number of elements, as in NCCL: what a rank
// sends in all_gather, gather and send; what a rank sends to each rank in all_to_all; what a
// rank receives in reduce_scatter, scatter and receive; the whole array in all_reduce, broadcast
// and reduce.
struct Operation {
  OperationKind kind = OperationKind::all_reduce;
  const void* send = nullptr;  // unused in receive
  void* receive = nullptr;     // unused in send
  std::uint64_t count = 0;
  DataType type = DataType::float32;
  ReduceOp reduction = ReduceOp::sum;  // used in all_reduce, reduce_scatter and reduce
  int peer = 0;  // the root in broadcast, reduce, gather, scatter; the other rank in send, receive

  // Return how much `rank` of `ranks` reads at `send` and writes at `receive`. A rank that does not
  // use a buffer has zero bytes there.
  Bytes reads(int ranks, int rank) const;
  Bytes writes(int ranks, int rank) const;
  // Returns whether one of the buffers has a part for each rank.
  bool has_parts() const;
  // Returns whether the operation connects pairs of ranks. All other operations connect all ranks
  // in rings and trees.
  bool is_point_to_point() const;
  // Returns a description such as "all-reduce of 64.00 MiB of float32 (sum)" or "send of 4.00 KiB
  // of int8 to rank 3".
  std::string describe(int ranks) const;
  // Checks that `rank` of `ranks` may ask for this operation. Errors: invalid_argument (the message
  // names what is wrong).
  Status check(int ranks, int rank) const;
};

}  // namespace weir
