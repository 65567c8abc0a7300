// SPDX-License-Identifier: Apache-2.0
// Replays on a real GPU. Skipped where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "replay/replay.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

class ReplayOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<ReplayDevice>> device = make_cuda_replay_device(/*verify=*/true);
    if (!device.ok() && device.error().code() == ErrorCode::unavailable) {
      GTEST_SKIP() << device.error().message();
    }
    ASSERT_TRUE(device.ok()) << device.error().message();
    device_ = *std::move(device);
  }

  ReplayReport replayed(const ReplayOptions& options) {
    // Another stream works on block 0 for 50 ms, while block 1 is written where it was.
    constexpr std::string_view kLateUse =
        "a 0 4194304 0 0\n"
        "r 0 4194304 0 100\n"
        "a 1 4194304 0 110\n"
        "f 0 4194304 0 50000\n"
        "r 1 4194304 0 60000\n"
        "f 1 4194304 0 60000\n";
    const Result<Trace> trace = parse_trace(kLateUse, "late_use.trace");
    Result<ReplayReport> report = replay(*trace, *device_, options);
    EXPECT_TRUE(report.ok());
    EXPECT_FALSE(report->failure.has_value()) << report->failure->message;
    return *std::move(report);
  }

  std::unique_ptr<ReplayDevice> device_;
};

TEST_F(ReplayOnCuda, BlockUsedPastItsFreeKeepsItsBytesUntilThen) {
  const ReplayReport report = replayed({.limit = 4_MiB, .passes = 2, .validate = true});
  EXPECT_EQ(report.all.races, 0u) << report.first_race;
  EXPECT_EQ(report.all.host_waits, 0u);
}

TEST_F(ReplayOnCuda, FenceThatIsLeftOutLosesBytes) {
  const ReplayReport report = replayed({.limit = 4_MiB, .leave_out_fences = true});
  EXPECT_GT(report.all.races.value(), 0u);
  EXPECT_THAT(report.first_race, HasSubstr("wrong"));
}

}  // namespace
}  // namespace weir
