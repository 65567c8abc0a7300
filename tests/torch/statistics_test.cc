// SPDX-License-Identifier: Apache-2.0
#include "torch/statistics.h"

#include <gtest/gtest.h>

namespace weir::pytorch {
namespace {

// What idles within pages in use. Blocks that sleep are live, and on no page.
TEST(DeviceStats, NothingIsInactiveWhereMemorySleeps) {
  Statistics now;
  now.leased_bytes.current = 30;
  now.live_bytes.current = 20;
  const auto inactive = [&] { return device_stats(now, {}, {}).inactive_split_bytes[0].current; };
  EXPECT_EQ(inactive(), 10);
  now.live_bytes.current = 40;
  EXPECT_EQ(inactive(), 0);
}

}  // namespace
}  // namespace weir::pytorch
