// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace weir {
namespace {

using ::testing::HasSubstr;

Operation of(OperationKind kind, std::uint64_t count = 100, DataType type = DataType::float32,
             int peer = 0) {
  static std::byte memory[1];
  return {
      .kind = kind, .send = memory, .receive = memory, .count = count, .type = type, .peer = peer};
}

struct Sizes {
  OperationKind kind;
  std::uint64_t reads, writes;  // of rank 1 of 4, in elements; the root is rank 0
  std::uint64_t root_reads, root_writes;
};

TEST(Operation, ConnectsPairsOrAllInRingsAndTrees) {
  for (int kind = 0; kind < kOperationKinds; ++kind) {
    const auto each = static_cast<OperationKind>(kind);
    const bool in_rings = each == OperationKind::all_reduce || each == OperationKind::all_gather ||
                          each == OperationKind::reduce_scatter ||
                          each == OperationKind::broadcast || each == OperationKind::reduce;
    EXPECT_EQ(of(each).is_point_to_point(), !in_rings) << of(each).describe(4);
  }
}

TEST(Operation, KnowsWhatEachRankReadsAndWrites) {
  constexpr Sizes kSizes[] = {
      {OperationKind::all_reduce, 100, 100, 100, 100},
      {OperationKind::all_gather, 100, 400, 100, 400},
      {OperationKind::reduce_scatter, 400, 100, 400, 100},
      {OperationKind::broadcast, 0, 100, 100, 100},
      {OperationKind::reduce, 100, 0, 100, 100},
      {OperationKind::all_to_all, 400, 400, 400, 400},
      {OperationKind::gather, 100, 0, 100, 400},
      {OperationKind::scatter, 0, 100, 400, 100},
      {OperationKind::send, 100, 0, 100, 0},
      {OperationKind::receive, 0, 100, 0, 100},
  };
  static_assert(std::size(kSizes) == kOperationKinds);
  for (const Sizes& sizes : kSizes) {
    const Operation operation = of(sizes.kind);
    EXPECT_EQ(operation.reads(4, 1), Bytes{4 * sizes.reads}) << name_of(sizes.kind);
    EXPECT_EQ(operation.writes(4, 1), Bytes{4 * sizes.writes}) << name_of(sizes.kind);
    EXPECT_EQ(operation.reads(4, 0), Bytes{4 * sizes.root_reads}) << name_of(sizes.kind);
    EXPECT_EQ(operation.writes(4, 0), Bytes{4 * sizes.root_writes}) << name_of(sizes.kind);
  }
}

TEST(Operation, OfEachKindSaysWhatItReducesAndWhoIsOnTheOtherSide) {
  constexpr std::string_view kDescribed[] = {
      "all-reduce of 100 B of int8 (sum)",     "all-gather of 400 B of int8",
      "reduce-scatter of 400 B of int8 (sum)", "broadcast of 100 B of int8, root 2",
      "reduce of 100 B of int8 (sum), root 2", "all-to-all of 400 B of int8",
      "gather of 400 B of int8, root 2",       "scatter of 400 B of int8, root 2",
      "send of 100 B of int8 to rank 2",       "receive of 100 B of int8 from rank 2",
  };
  static_assert(std::size(kDescribed) == kOperationKinds);
  for (int kind = 0; kind < kOperationKinds; ++kind) {
    static std::byte both[800];
    Operation operation = of(static_cast<OperationKind>(kind), 100, DataType::int8, 2);
    operation.send = both;
    operation.receive = both + 400;
    const std::string_view described = kDescribed[kind];
    EXPECT_EQ(operation.describe(4), described);
    const bool has_other_side =
        described.find("root") != std::string::npos || described.find("rank") != std::string::npos;
    EXPECT_TRUE(operation.check(3, 0)) << described;
    EXPECT_EQ(operation.check(2, 0).ok(), !has_other_side) << described;
    operation.peer = -1;
    EXPECT_EQ(operation.check(3, 0).ok(), !has_other_side) << described;
  }
}

TEST(Operation, WithoutABufferThatItNeedsIsRefused) {
  Operation operation = of(OperationKind::broadcast);
  operation.send = nullptr;
  EXPECT_THAT(operation.check(2, 0).error().message(), HasSubstr("send from is null"));
  EXPECT_TRUE(operation.check(2, 1));  // only the root sends
  operation.receive = nullptr;
  EXPECT_THAT(operation.check(2, 1).error().message(), HasSubstr("receive into is null"));
  operation.count = 0;
  EXPECT_TRUE(operation.check(2, 0));
}

TEST(Operation, WithBuffersThatOverlapAndAreNotInPlaceIsRefused) {
  static std::byte memory[4000];
  using enum OperationKind;
  // Of rank 1 of 4, 100 elements of 4 bytes: where the receive buffer begins, seen from the other.
  const std::tuple<OperationKind, int, bool> cases[] = {
      {all_reduce, 0, true},      {all_reduce, 4, false},       {all_reduce, -4, false},
      {all_reduce, 400, true},    {all_gather, -400, true},     {all_gather, 0, false},
      {all_gather, -800, false},  {all_gather, 400, true},      {reduce_scatter, 400, true},
      {reduce_scatter, 0, false}, {reduce_scatter, 1600, true}, {all_to_all, 0, false},
      {all_to_all, 400, false},   {broadcast, 4, true},         {scatter, 4, true},
  };
  for (const auto& [kind, offset, right] : cases) {
    Operation operation = of(kind);
    operation.send = memory + 2000;
    operation.receive = memory + 2000 + offset;
    EXPECT_EQ(operation.check(4, 1).ok(), right) << name_of(kind) << " " << offset;
  }
}

TEST(Operation, TooLargeForSixtyFourBitsIsRefused) {
  const Operation operation = of(OperationKind::all_gather, ~std::uint64_t{0} / 8);
  EXPECT_THAT(operation.check(4, 0).error().message(), HasSubstr("more bytes than 64 bits"));
}

TEST(Operation, OfNoKindTypeOrReductionIsRefused) {
  for (const int number : {-1, 1000}) {
    const Operation bad[] = {{.kind = OperationKind(number)},
                             {.type = DataType(number)},
                             {.reduction = ReduceOp(number)}};
    for (const Operation& each : bad)
      EXPECT_EQ(each.check(2, 0).error().code(), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace weir
