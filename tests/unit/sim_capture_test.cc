// SPDX-License-Identifier: Apache-2.0
// Captures of the simulated device: who joins them, what breaks them, how they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/sim_graph_fixture.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::IsEmpty;

using SimCaptures = test::SimGraphs;

TEST_F(SimCaptures, AccessesAreCheckedWhenCaptured) {
  begin(a_);
  void* const beyond = page_.at(page_.size);
  EXPECT_EQ(device_.launch(a_, Writes(beyond, 1_B), 1_us).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_THAT(tips(a_), IsEmpty());
  EXPECT_EQ(status(a_), CaptureInfo::Status::active);
  end(a_);
}

TEST_F(SimCaptures, ABrokenCaptureTakesItsOtherStreamsAlong) {
  const EventHandle eager = record(c_);
  begin(a_);
  write(a_, 0);
  const EventHandle fork = record(a_);
  ASSERT_TRUE(device_.wait(b_, fork).ok());
  EXPECT_FALSE(device_.wait(b_, eager).ok());
  EXPECT_EQ(status(b_), CaptureInfo::Status::invalidated);
  EXPECT_EQ(device_.wait(c_, fork).error().code(), ErrorCode::capture);
  EXPECT_EQ(status(c_), CaptureInfo::Status::none) << "nobody joins a broken capture";
  expect_broken(a_, "eager");
  EXPECT_EQ(status(b_), CaptureInfo::Status::none);
}

TEST_F(SimCaptures, AnEventOutlivesItsCaptureOnlyAsAnError) {
  begin(a_);
  const EventHandle event = record(a_);
  end(a_);
  EXPECT_EQ(device_.wait(b_, event).error().code(), ErrorCode::capture);
  EXPECT_EQ(device_.query(event).error().code(), ErrorCode::capture);
  ASSERT_TRUE(device_.record(event, a_).ok());
  EXPECT_TRUE(device_.wait(b_, event).ok()) << "recorded again, outside";
  EXPECT_TRUE(*device_.query(event));
}

TEST_F(SimCaptures, TheLegacyStreamJoinsNoCapture) {
  begin(a_);
  const EventHandle event = record(a_);
  EXPECT_FALSE(device_.wait(*device_.stream(nullptr), event).ok());
  expect_broken(a_, "legacy");
}

TEST_F(SimCaptures, NodesThatAreNotOfTheCaptureAreRefusedTogether) {
  begin(a_);
  begin(b_);
  order(a_, c_);
  write(a_, 0);
  write(b_, 1);
  write(c_, 2);
  const std::vector<GraphNode> before = tips(a_);
  const GraphNode good = tips(c_).at(0), foreign = tips(b_).at(0);
  const GraphNode unknown{good.value + 1};
  for (const GraphNode bad : {foreign, unknown, GraphNode{}}) {
    EXPECT_EQ(device_.add_capture_dependencies(a_, std::vector{good, bad}).error().code(),
              ErrorCode::device);
  }
  EXPECT_EQ(tips(a_), before);
  EXPECT_EQ(status(a_), CaptureInfo::Status::active);
  EXPECT_EQ(device_.node_dependencies(unknown).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.node_dependencies({}).error().code(), ErrorCode::device);
}

}  // namespace
}  // namespace weir
