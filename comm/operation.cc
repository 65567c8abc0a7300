// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/operation.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "core/base/format.h"
#include "core/base/range.h"

namespace weir {
namespace {

// For each OperationKind. Sizes are in units of `count` elements.
enum class Units { none, one, each_rank };
enum class Who { all, root };
struct Shape {
  std::string_view name;
  Units sends;
  Who senders;
  Units receives;
  Who receivers;
  bool reduces;
  std::string_view peer;  // what `peer` is, in descriptions; empty: it is unused
};
using enum Units;
constexpr std::array<Shape, kOperationKinds> kShapes{{
    {"all-reduce", one, Who::all, one, Who::all, true, ""},
    {"all-gather", one, Who::all, each_rank, Who::all, false, ""},
    {"reduce-scatter", each_rank, Who::all, one, Who::all, true, ""},
    {"broadcast", one, Who::root, one, Who::all, false, ", root "},
    {"reduce", one, Who::all, one, Who::root, true, ", root "},
    {"all-to-all", each_rank, Who::all, each_rank, Who::all, false, ""},
    {"gather", one, Who::all, each_rank, Who::root, false, ", root "},
    {"scatter", each_rank, Who::root, one, Who::all, false, ", root "},
    {"send", one, Who::all, none, Who::all, false, " to rank "},
    {"receive", none, Who::all, one, Who::all, false, " from rank "},
}};

constexpr std::array<std::string_view, kDataTypes> kTypeNames{
    "int8",    "uint8",   "int32",   "uint32",   "int64",       "uint64",
    "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
constexpr std::array<std::uint64_t, kDataTypes> kTypeSizes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr std::array<std::string_view, kReduceOps> kOpNames{"sum", "product", "max", "min",
                                                            "average"};

const Shape& shape_of(OperationKind kind) { return kShapes[static_cast<std::size_t>(kind)]; }

// The largest that stands in 64 bits, for sizes that would not.
constexpr std::uint64_t kMost = ~std::uint64_t{0};
std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMost : product;
}

Bytes bytes_of(const Operation& operation, Units units, Who who, int ranks, int rank) {
  if (units == none || (who == Who::root && rank != operation.peer)) return 0_B;
  const std::uint64_t one_rank = times(operation.count, size_of(operation.type).count);
  return {units == one ? one_rank : times(one_rank, static_cast<std::uint64_t>(ranks))};
}

// Where the buffers overlap: does the smaller begin where it does in place?
bool is_in_place_or_apart(const Operation& operation, int ranks, int rank) {
  const Bytes reads = operation.reads(ranks, rank), writes = operation.writes(ranks, rank);
  Range small{Address::of(operation.send), reads}, large{Address::of(operation.receive), writes};
  const bool overlap = small.begin < large.end() && large.begin < small.end();
  if (reads == 0_B || writes == 0_B || !overlap) return true;
  if (operation.kind == OperationKind::all_to_all) return false;  // NCCL has none in place
  if (writes < reads) std::swap(small, large);
  const auto part = static_cast<std::uint64_t>(reads == writes ? 0 : rank);
  return small.begin == large.begin + small.size * part;
}

Error bad(const Operation& operation, int ranks, const std::string& what) {
  return {ErrorCode::invalid_argument, operation.describe(ranks) + ": " + what};
}

}  // namespace

std::string_view name_of(DataType type) { return kTypeNames[static_cast<std::size_t>(type)]; }
Bytes size_of(DataType type) { return {kTypeSizes[static_cast<std::size_t>(type)]}; }
std::string_view name_of(ReduceOp op) { return kOpNames[static_cast<std::size_t>(op)]; }
std::string_view name_of(OperationKind kind) { return shape_of(kind).name; }

Bytes Operation::reads(int ranks, int rank) const {
  return bytes_of(*this, shape_of(kind).sends, shape_of(kind).senders, ranks, rank);
}

Bytes Operation::writes(int ranks, int rank) const {
  return bytes_of(*this, shape_of(kind).receives, shape_of(kind).receivers, ranks, rank);
}

bool Operation::has_parts() const {
  return shape_of(kind).sends == each_rank || shape_of(kind).receives == each_rank;
}

bool Operation::is_point_to_point() const {
  return kind == OperationKind::all_to_all || kind == OperationKind::gather ||
         kind == OperationKind::scatter || kind == OperationKind::send ||
         kind == OperationKind::receive;
}

std::string Operation::describe(int ranks) const {
  const Shape& shape = shape_of(kind);
  const std::uint64_t bytes =
      times(times(count, size_of(type).count), has_parts() ? static_cast<std::uint64_t>(ranks) : 1);
  std::string text = fmt::format("{} of {} of {}", shape.name, format(Bytes{bytes}), name_of(type));
  if (shape.reduces) text += fmt::format(" ({})", name_of(reduction));
  if (!shape.peer.empty()) text += fmt::format("{}{}", shape.peer, peer);
  return text;
}

Status Operation::check(int ranks, int rank) const {
  const auto in = [](auto value, int all) { return unsigned(value) < unsigned(all); };
  if (!in(kind, kOperationKinds) || !in(type, kDataTypes) || !in(reduction, kReduceOps)) {
    return Error(ErrorCode::invalid_argument,
                 "operation: its kind, type or reduction is no value of its enumeration");
  }
  if (!shape_of(kind).peer.empty() && (peer < 0 || peer >= ranks)) {
    return bad(*this, ranks,
               fmt::format("there is no rank {} among {}: ranks count from 0", peer, ranks));
  }
  if (reads(ranks, rank).count == kMost || writes(ranks, rank).count == kMost) {
    return bad(*this, ranks,
               fmt::format("{} elements are more bytes than 64 bits can count", count));
  }
  if (reads(ranks, rank) > 0_B && send == nullptr) {
    return bad(*this, ranks, "the buffer to send from is null");
  }
  if (writes(ranks, rank) > 0_B && receive == nullptr) {
    return bad(*this, ranks, "the buffer to receive into is null");
  }
  if (!is_in_place_or_apart(*this, ranks, rank)) {
    return bad(*this, ranks,
               "its buffers overlap, and are not in place: in place they begin at one address or, "
               "where one has a part for each rank, at this rank's part; an all-to-all is never");
  }
  return {};
}

}  // namespace weir
