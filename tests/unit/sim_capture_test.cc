// SPDX-License-Identifier: Apache-2.0
// Captures of the simulated device: who joins them, what breaks them, how they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/unit/sim_graph_fixture.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using SimCaptures = test::SimGraphs;

TEST_F(SimCaptures, AStreamIsCapturedFromBeginToEnd) {
  EXPECT_EQ(status(a_), CaptureInfo::Status::none);
  begin(a_);
  const std::uint64_t first = id(a_);
  EXPECT_EQ(status(a_), CaptureInfo::Status::active);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(status(b_), CaptureInfo::Status::none);
  end(a_);
  EXPECT_EQ(status(a_), CaptureInfo::Status::none);
  EXPECT_EQ(id(a_), 0u);
  begin(a_);
  EXPECT_NE(id(a_), first);
  begin(b_);
  EXPECT_NE(id(a_), id(b_));
}

TEST_F(SimCaptures, WhatCantBeCapturedIsRefused) {
  const Stream legacy = *device_.stream(nullptr);
  EXPECT_EQ(device_.begin_capture(legacy, CaptureMode::relaxed).error().code(), ErrorCode::capture);
  EXPECT_EQ(status(legacy), CaptureInfo::Status::none);
  const Stream unknown{.handle = nullptr, .id = 99};
  EXPECT_EQ(device_.begin_capture(unknown, CaptureMode::relaxed).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.end_capture(unknown).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.end_capture(a_).error().code(), ErrorCode::capture);
  begin(a_);
  const Status again = device_.begin_capture(a_, CaptureMode::global);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), ErrorCode::capture);
  EXPECT_EQ(status(a_), CaptureInfo::Status::active) << "the first one goes on";
  EXPECT_EQ(device_.destroy_stream(a_).error().code(), ErrorCode::invalid_argument);
  end(a_);
}

TEST_F(SimCaptures, KernelsOfACaptureDoNotRun) {
  begin(a_);
  write(a_, 0, 10_ms);
  end(a_);
  write(b_, 0);
  EXPECT_EQ(device_.race_count(), 0u) << "only one of the two writes was made";
  EXPECT_TRUE(device_.finished(record(a_)));
}

TEST_F(SimCaptures, EachKernelOfAStreamDependsOnTheOneBefore) {
  begin(a_);
  EXPECT_THAT(tips(a_), IsEmpty());
  write(a_, 0);
  const std::vector<GraphNode> first = tips(a_);
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_THAT(dependencies(first[0]), IsEmpty());
  write(a_, 0);
  const std::vector<GraphNode> second = tips(a_);
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_NE(second, first);
  EXPECT_EQ(dependencies(second[0]), first);
  const GraphHandle graph = end(a_);
  EXPECT_EQ(dependencies(second[0]), first) << "the graph is still there";
  ASSERT_TRUE(device_.destroy_graph(graph).ok());
  EXPECT_EQ(device_.node_dependencies(second[0]).error().code(), ErrorCode::device);
}

TEST_F(SimCaptures, AccessesAreCheckedWhenCaptured) {
  begin(a_);
  void* const beyond = page_.at(page_.size);
  EXPECT_EQ(device_.launch(a_, Writes(beyond, 1_B), 1_us).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_THAT(tips(a_), IsEmpty());
  EXPECT_EQ(status(a_), CaptureInfo::Status::active);
  end(a_);
}

TEST_F(SimCaptures, ARecordAddsNothing) {
  begin(a_);
  write(a_, 0);
  const std::vector<GraphNode> before = tips(a_);
  const EventHandle event = record(a_);
  EXPECT_EQ(tips(a_), before);
  EXPECT_FALSE(device_.finished(event));
  end(a_);
}

TEST_F(SimCaptures, AStreamJoinsByWaitingAndDependsOnWhatItWaitedFor) {
  begin(a_);
  write(a_, 0);
  const GraphNode forked_at = tips(a_).at(0);
  const EventHandle fork = record(a_);
  write(a_, 1);
  const GraphNode later = tips(a_).at(0);
  ASSERT_TRUE(device_.wait(b_, fork).ok());
  EXPECT_EQ(id(b_), id(a_));
  EXPECT_THAT(tips(b_), ElementsAre(forked_at));
  write(b_, 2);
  const GraphNode side = tips(b_).at(0);
  EXPECT_THAT(dependencies(side), ElementsAre(forked_at));
  order(b_, a_);
  EXPECT_THAT(tips(a_), ElementsAre(later, side));
  write(a_, 3);
  EXPECT_THAT(dependencies(tips(a_).at(0)), ElementsAre(later, side));
  end(a_);
  EXPECT_EQ(status(b_), CaptureInfo::Status::none);
}

TEST_F(SimCaptures, AWaitForWhatIsATipAlreadyAddsNothing) {
  begin(a_);
  write(a_, 0);
  const std::vector<GraphNode> before = tips(a_);
  order(a_, a_);
  EXPECT_EQ(tips(a_), before);
  end(a_);
}

TEST_F(SimCaptures, AnEventNeverRecordedIsNoPartOfIt) {
  begin(a_);
  const EventHandle event = *device_.create_event();
  EXPECT_TRUE(device_.wait(a_, event).ok());
  EXPECT_TRUE(device_.wait(b_, event).ok());
  EXPECT_EQ(status(b_), CaptureInfo::Status::none);
  end(a_);
}

TEST_F(SimCaptures, WorkThatIsNotJoinedBreaksTheEndAndIsNamed) {
  begin(a_);
  write(a_, 0);
  order(a_, b_);
  write(b_, 1);
  order(b_, a_);
  write(b_, 2);
  const Result<GraphHandle> graph = device_.end_capture(a_);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::capture);
  EXPECT_THAT(graph.error().message(), HasSubstr("stream " + std::to_string(b_.id)));
  EXPECT_EQ(status(a_), CaptureInfo::Status::none);
  EXPECT_EQ(status(b_), CaptureInfo::Status::none);
  EXPECT_EQ(device_.live().graphs, 0u);
}

TEST_F(SimCaptures, AStreamThatOnlyWaitedHasNothingToJoin) {
  begin(a_);
  write(a_, 0);
  order(a_, b_);
  EXPECT_EQ(status(b_), CaptureInfo::Status::active);
  end(a_);
  EXPECT_EQ(status(b_), CaptureInfo::Status::none);
}

TEST_F(SimCaptures, AJoinThroughAThirdStreamCounts) {
  begin(a_);
  order(a_, b_);
  order(a_, c_);
  write(b_, 1);
  order(b_, c_);
  write(c_, 2);
  order(c_, a_);
  end(a_);
}

TEST_F(SimCaptures, TheEndIsOnTheStreamWhereItBegan) {
  begin(a_);
  write(a_, 0);
  order(a_, b_);
  const Result<GraphHandle> graph = device_.end_capture(b_);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::capture);
  EXPECT_THAT(graph.error().message(), HasSubstr("stream " + std::to_string(a_.id)));
  EXPECT_EQ(status(a_), CaptureInfo::Status::active);
  end(a_);
}

TEST_F(SimCaptures, TheThreadThatBeganACaptureEndsItUnlessItIsRelaxed) {
  for (const CaptureMode mode : {CaptureMode::global, CaptureMode::thread_local_}) {
    begin(a_, mode);
    std::thread([&] {
      EXPECT_EQ(device_.end_capture(a_).error().code(), ErrorCode::capture);
    }).join();
    EXPECT_EQ(status(a_), CaptureInfo::Status::active);
    end(a_);
  }
  begin(a_, CaptureMode::relaxed);
  std::thread([&] { end(a_); }).join();
  EXPECT_EQ(status(a_), CaptureInfo::Status::none);
}

TEST_F(SimCaptures, AWaitForAnEagerEventBreaksTheCapture) {
  const EventHandle eager = record(b_);
  begin(a_);
  EXPECT_EQ(device_.wait(a_, eager).error().code(), ErrorCode::capture);
  expect_broken(a_, "eager");
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

TEST_F(SimCaptures, AWaitForAnotherCaptureBreaksBoth) {
  begin(a_);
  begin(b_);
  const EventHandle other = record(b_);
  EXPECT_EQ(device_.wait(a_, other).error().code(), ErrorCode::capture);
  expect_broken(a_, "another capture");
  expect_broken(b_, "another capture");
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

TEST_F(SimCaptures, AskingForAnEventOfTheCaptureBreaksIt) {
  begin(a_);
  EXPECT_EQ(device_.query(record(a_)).error().code(), ErrorCode::capture);
  expect_broken(a_, "query");
  begin(a_);
  EXPECT_EQ(device_.synchronize(record(a_)).error().code(), ErrorCode::capture);
  expect_broken(a_, "synchronize");
  EXPECT_EQ(device_.host_waits(), 0u);
}

TEST_F(SimCaptures, AskingForAnEagerEventBreaksNothing) {
  const EventHandle eager = record(b_);
  begin(a_);
  EXPECT_TRUE(*device_.query(eager));
  EXPECT_TRUE(device_.synchronize(eager).ok());
  end(a_);
}

TEST_F(SimCaptures, TheLegacyStreamJoinsNoCapture) {
  begin(a_);
  const EventHandle event = record(a_);
  EXPECT_FALSE(device_.wait(*device_.stream(nullptr), event).ok());
  expect_broken(a_, "legacy");
}

TEST_F(SimCaptures, AddedDependenciesAreOfTheNextKernel) {
  begin(a_);
  order(a_, b_);
  write(a_, 0);
  write(b_, 1);
  const GraphNode mine = tips(a_).at(0), other = tips(b_).at(0);
  ASSERT_TRUE(device_.add_capture_dependencies(a_, std::vector{other, mine}).ok());
  EXPECT_THAT(tips(a_), ElementsAre(mine, other));
  write(a_, 2);
  EXPECT_THAT(dependencies(tips(a_).at(0)), ElementsAre(mine, other));
  end(a_);
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
