// SPDX-License-Identifier: Apache-2.0
#include "weir/types.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace weir {
namespace {

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

}  // namespace
}  // namespace weir
