// SPDX-License-Identifier: Apache-2.0
#include "weir/types.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace weir {
namespace {

TEST(Types, UnitsAreBinary) {
  EXPECT_EQ((1_KiB).count, 1024u);
  EXPECT_EQ((1_MiB).count, 1048576u);
  EXPECT_EQ(3_GiB, 1_GiB * 3);
  EXPECT_EQ(1_TiB / 1_GiB, 1024u);
}

TEST(Types, RoundingGoesToTheUnitAndStaysOnIt) {
  EXPECT_EQ(round_up(0_B, 512_B), 0_B);
  EXPECT_EQ(round_up(1_B, 512_B), 512_B);
  EXPECT_EQ(round_up(512_B, 512_B), 512_B);
  EXPECT_EQ(round_up(513_B, 512_B), 1_KiB);
  EXPECT_EQ(round_down(1023_B, 512_B), 512_B);
  EXPECT_EQ(round_down(1024_B, 512_B), 1_KiB);
}

TEST(Types, SwappedUnitsDoNotCompile) {
  EXPECT_FALSE((std::is_convertible_v<Bytes, Address>));
  EXPECT_FALSE((std::is_convertible_v<HeapId, PageId>));
  EXPECT_FALSE((std::is_convertible_v<Bytes, Nanoseconds>));
  EXPECT_FALSE((std::is_convertible_v<std::uint64_t, Sequence>));
}

TEST(Types, AddressesAreOrderedAndDifferByBytes) {
  const Address low{0x1000}, high = low + 8_KiB;
  EXPECT_LT(low, high);
  EXPECT_EQ(high - low, 8_KiB);
  EXPECT_EQ(high - 8_KiB, low);
  int here = 0;
  EXPECT_EQ(Address::of(&here).pointer(), &here);
}

TEST(Types, StreamsAreTheSameWhenTheirIdsAre) {
  int a = 0, b = 0;
  EXPECT_EQ((Stream{&a, 7}), (Stream{&b, 7}));
  EXPECT_FALSE((Stream{&a, 7} == Stream{&a, 8}));
}

}  // namespace
}  // namespace weir
