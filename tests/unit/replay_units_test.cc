// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "replay/limit.h"
#include "replay/units.h"

namespace weir {
namespace {

TEST(Units, BytesTakeTheUnitThatFits) {
  EXPECT_EQ(in_words(0_B), "0 B");
  EXPECT_EQ(in_words(1023_B), "1023 B");
  EXPECT_EQ(in_words(1_KiB), "1.00 KiB");
  EXPECT_EQ(in_words(1536_KiB), "1.50 MiB");
  EXPECT_EQ(in_words(2_MiB * 50), "100 MiB");
  EXPECT_EQ(in_words(1_GiB - 1_B), "1.00 GiB");
  EXPECT_EQ(in_words(141_GiB), "141 GiB");
  EXPECT_EQ(in_words(3000_TiB), "2.93 PiB");
}

TEST(Units, TimesTakeTheUnitThatFits) {
  EXPECT_EQ(in_words(999_ns), "999 ns");
  EXPECT_EQ(in_words(1500_ns), "1.50 us");
  EXPECT_EQ(in_words(67700_us), "67.7 ms");
  EXPECT_EQ(in_words(15621_ms), "15.6 s");
  EXPECT_EQ(in_words(Nanoseconds{999'999}), "1.00 ms");
}

TEST(Units, NumbersHaveCommasAndCountsTheirPlural) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(counted(1, "page"), "1 page");
  EXPECT_EQ(counted(2000, "page"), "2,000 pages");
}

TEST(ReplayLimit, IsASizeOrAMultipleOfTheTracesPeak) {
  EXPECT_EQ(parse_replay_limit("40GiB")->for_peak(1_GiB), 40_GiB);
  EXPECT_EQ(parse_replay_limit("512MiB")->for_peak(1_GiB), 512_MiB);
  EXPECT_EQ(parse_replay_limit("1000")->for_peak(1_GiB), 1000_B);
  EXPECT_EQ(parse_replay_limit("1.5x")->for_peak(1_GiB), 1536_MiB);
  EXPECT_EQ(parse_replay_limit("1.03x")->for_peak(100_B), 103_B);
  EXPECT_EQ(parse_replay_limit("0.5x")->for_peak(3_B), 2_B) << "rounded up";
  EXPECT_EQ(parse_replay_limit("1x")->for_peak(0_B), 1_B) << "zero would be no limit";
}

}  // namespace
}  // namespace weir
