// SPDX-License-Identifier: Apache-2.0
// What each benchmark measures: how a size becomes a count, which memory it uses, which operations
// it is, and what its bandwidth is. All as nccl-tests has it (version 2.19: src/*.cu,
// doc/PERFORMANCE.md), of float32 and, where it reduces, sums.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "weir/comm/operation.h"
#include "weir/types.h"

namespace weir {

enum class BenchOperation {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  send_receive,  // each rank sends to the next, and receives from the one before
};
inline constexpr int kBenchOperations = static_cast<int>(BenchOperation::send_receive) + 1;
std::string_view name_of(BenchOperation operation);  // as the command line has it: "all_reduce"
bool reduces(BenchOperation operation);
// nccl-tests checks no result of these in place: what they should be is not defined.
bool is_checked(BenchOperation operation, bool in_place);

struct BenchShape {
  std::uint64_t count = 0;  // NCCL's argument, and the column
  Bytes send, receive;      // what a rank has at each
  // In place, within the memory to receive into: where rank r's part begins is r times these.
  Bytes send_offset, receive_offset;

  Bytes size() const { return send > receive ? send : receive; }  // the column
};
// For a size as asked for. Where ranks have a part each, parts are multiples of 16 bytes.
BenchShape shape_of(BenchOperation operation, Bytes size, int ranks);

struct Bandwidth {  // 10^9 bytes a second
  double algorithm = 0, bus = 0;
};
Bandwidth bandwidth_of(BenchOperation operation, std::uint64_t count, double seconds, int ranks);

// What `rank` asks for, in memory that begins there. In place `send` is not used.
std::vector<Operation> operations_of(BenchOperation operation, const BenchShape& shape,
                                     bool in_place, int rank, int ranks, void* send, void* receive);

// Where the operation number `iteration` begins in memory of `most` bytes: each has another place
// than the one before, as long as there is room.
Bytes shift_of(const BenchShape& shape, Bytes most, std::uint64_t iteration);

}  // namespace weir
