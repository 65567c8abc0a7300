// SPDX-License-Identifier: Apache-2.0
// Graphs of the simulated device: launches, what they cost and order, and what keeps them alive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sim_graph_fixture.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::HasSubstr;

class SimGraphLaunch : public test::SimGraphs {
 protected:
  ExecutableHandle one_write(int slot, Nanoseconds duration = 1_us) {
    begin(a_);
    write(a_, slot, duration);
    return instantiate(end(a_));
  }
  void launch(ExecutableHandle executable, Stream stream) {
    const Status launched = device_.launch_graph(executable, stream);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
  }
};

TEST_F(SimGraphLaunch, ItTakesAsLongAsItsLongestPath) {
  begin(a_);
  write(a_, 0, 10_us);
  order(a_, b_);
  write(a_, 1, 20_us);
  write(b_, 2, 50_us);
  order(b_, a_);
  write(a_, 3, 5_us);
  const ExecutableHandle executable = instantiate(end(a_));
  launch(executable, c_);
  const Nanoseconds start = device_.now();
  ASSERT_TRUE(device_.synchronize(record(c_)).ok());
  EXPECT_EQ(device_.now() - start, 65_us);
}

TEST_F(SimGraphLaunch, HandlesThatAreNotLiveAreRefused) {
  const ExecutableHandle executable = one_write(0);
  const GraphHandle unknown{99};
  EXPECT_EQ(device_.instantiate(unknown).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.destroy_graph(unknown).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.launch_graph(ExecutableHandle{99}, a_).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.launch_graph(executable, Stream{.handle = nullptr, .id = 99}).error().code(),
            ErrorCode::device);
  ASSERT_TRUE(device_.destroy_executable(executable).ok());
  EXPECT_EQ(device_.destroy_executable(executable).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.launch_graph(executable, a_).error().code(), ErrorCode::device);
}

TEST_F(SimGraphLaunch, AGraphIsNotLaunchedIntoACapture) {
  const ExecutableHandle executable = one_write(0);
  begin(b_);
  EXPECT_EQ(device_.launch_graph(executable, b_).error().code(), ErrorCode::capture);
  EXPECT_EQ(status(b_), CaptureInfo::Status::active);
  end(b_);
}

TEST_F(SimGraphLaunch, MemoryThatIsNotMappedAnyMoreIsNamedAndNothingRuns) {
  const ExecutableHandle executable = one_write(0);
  const Address address = page_.address;
  ASSERT_TRUE(device_.unmap(address, page_.size).ok());
  const Status launched = device_.launch_graph(executable, a_);
  ASSERT_FALSE(launched.ok());
  EXPECT_EQ(launched.error().code(), ErrorCode::invalid_argument);
  EXPECT_THAT(launched.error().message(), HasSubstr("launch_graph: writes 512 bytes at 0x"));
  EXPECT_THAT(launched.error().message(), HasSubstr("is not mapped"));
  ASSERT_TRUE(device_.map(address, page_.size, page_.handle).ok());
  ASSERT_TRUE(device_.set_access(address, page_.size).ok());
  write(b_, 0);
  EXPECT_EQ(device_.race_count(), 0u) << "the launch that failed wrote nothing";
  order(b_, a_);
  launch(executable, a_);
  EXPECT_EQ(device_.race_count(), 0u);
}

}  // namespace
}  // namespace weir
