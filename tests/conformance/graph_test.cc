// SPDX-License-Identifier: Apache-2.0
// Nodes and launches of captured graphs, and who may end a capture: what every device does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <thread>
#include <vector>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

class DeviceGraphs : public ConformanceOnAPage {
 protected:
  void SetUp() override {
    ConformanceOnAPage::SetUp();
    if (IsSkipped()) return;
    stream_ = rig().new_stream();
    side_ = rig().new_stream();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    for (const EventHandle event : events_) expect_ok(device().destroy_event(event));
    ConformanceOnAPage::TearDown();
  }

  void begin(CaptureMode mode = CaptureMode::global) {
    expect_ok(device().begin_capture(stream_, mode));
  }
  // Fails the test if the capture was broken.
  GraphHandle end() {
    const Result<GraphHandle> graph = device().end_capture(stream_);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    return graph.ok() ? *graph : GraphHandle{};
  }
  void end_and_discard() { expect_ok(device().destroy_graph(end())); }
  // The graph is destroyed before its executable is ever launched.
  ExecutableHandle end_and_instantiate() {
    const GraphHandle graph = end();
    const Result<ExecutableHandle> executable = device().instantiate(graph);
    expect_ok(device().destroy_graph(graph));
    EXPECT_TRUE(executable.ok()) << executable.error().message();
    return executable.ok() ? *executable : ExecutableHandle{};
  }
  // Ends a capture of which it does not matter whether it was broken.
  void abandon() {
    const Result<GraphHandle> graph = device().end_capture(stream_);
    if (graph.ok()) expect_ok(device().destroy_graph(*graph));
    EXPECT_EQ(status_of(stream_), CaptureInfo::Status::none);
  }

  void fill(Stream stream, std::uint32_t value) {
    rig().fill(stream, address_, page_size(), value);
  }
  void expect_filled(std::uint32_t value) {
    finish(stream_);
    rig().expect_filled(address_, page_size(), value);
  }
  // Work of `follower` from now on comes after what `leader` has now.
  void follow(Stream follower, Stream leader) {
    events_.push_back(record(leader));
    expect_ok(device().wait(follower, events_.back()));
  }

  CaptureInfo::Status status_of(Stream stream) {
    const Result<CaptureInfo> info = device().capture_info(stream);
    EXPECT_TRUE(info.ok()) << info.error().message();
    return info.ok() ? info->status : CaptureInfo::Status::none;
  }
  // The node that was captured last in `stream`.
  GraphNode last_node(Stream stream) {
    const Result<std::vector<GraphNode>> tips = device().capture_tips(stream);
    EXPECT_TRUE(tips.ok()) << tips.error().message();
    if (!tips.ok()) return {};
    EXPECT_EQ(tips->size(), 1u);
    return tips->empty() ? GraphNode{} : tips->front();
  }
  std::vector<GraphNode> dependencies(GraphNode node) {
    const Result<std::vector<GraphNode>> nodes = device().node_dependencies(node);
    EXPECT_TRUE(nodes.ok()) << nodes.error().message();
    return nodes.ok() ? *nodes : std::vector<GraphNode>{};
  }
  template <class T>
  static void expect_capture_error(const Result<T>& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::capture) << result.error().message();
  }

  Stream stream_;  // the one that captures begin in
  Stream side_;
  std::vector<EventHandle> events_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceGraphs, each_kind_of_device(), kind_name);

TEST_P(DeviceGraphs, ACapturedStreamSaysSoAndEachCaptureHasItsOwnId) {
  begin();
  const Result<CaptureInfo> first = device().capture_info(stream_);
  end_and_discard();
  begin();
  const Result<CaptureInfo> second = device().capture_info(stream_);
  end_and_discard();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->status, CaptureInfo::Status::active);
  EXPECT_NE(first->id, second->id);
  EXPECT_EQ(status_of(stream_), CaptureInfo::Status::none);
}

TEST_P(DeviceGraphs, TipsAreTheNodesThatTheNextDependsOnAndCanBeAddedTo) {
  begin();
  EXPECT_TRUE(device().capture_tips(stream_)->empty());
  fill(stream_, 1);
  const GraphNode first = last_node(stream_);
  fill(stream_, 2);
  const GraphNode second = last_node(stream_);
  EXPECT_NE(first, second);
  expect_ok(device().add_capture_dependencies(stream_, std::array{first}));
  EXPECT_THAT(*device().capture_tips(stream_), UnorderedElementsAre(first, second));
  fill(stream_, 3);
  EXPECT_THAT(dependencies(last_node(stream_)), UnorderedElementsAre(first, second));
  end_and_discard();
}

TEST_P(DeviceGraphs, ANodeDependsOnWhatItsStreamDidAndWaitedFor) {
  begin();
  fill(stream_, 1);
  const GraphNode first = last_node(stream_);
  follow(side_, stream_);
  fill(side_, 2);
  const GraphNode beside = last_node(side_);
  fill(stream_, 3);
  const GraphNode second = last_node(stream_);
  follow(stream_, side_);
  fill(stream_, 4);
  const GraphNode joined = last_node(stream_);
  EXPECT_THAT(dependencies(first), IsEmpty());
  EXPECT_THAT(dependencies(beside), UnorderedElementsAre(first));
  EXPECT_THAT(dependencies(second), UnorderedElementsAre(first));
  EXPECT_THAT(dependencies(joined), UnorderedElementsAre(beside, second));
  end_and_discard();
}

TEST_P(DeviceGraphs, ANodeNamesAllOfManyDependencies) {
  for (const std::size_t count : {8, 9, 40}) {
    begin();
    std::vector<GraphNode> nodes;
    while (nodes.size() < count) {
      fill(stream_, 1);
      nodes.push_back(last_node(stream_));
    }
    expect_ok(device().add_capture_dependencies(stream_, std::span(nodes).first(count - 1)));
    fill(stream_, 2);
    EXPECT_THAT(dependencies(last_node(stream_)), UnorderedElementsAreArray(nodes));
    end_and_discard();
  }
}

TEST_P(DeviceGraphs, CapturedWorkRunsAtEachLaunchAndNotBefore) {
  for (const CaptureMode mode :
       {CaptureMode::global, CaptureMode::thread_local_, CaptureMode::relaxed}) {
    fill(stream_, 1);
    begin(mode);
    fill(stream_, 7);
    const ExecutableHandle executable = end_and_instantiate();
    expect_filled(1);
    for (int launch = 0; launch < 2; ++launch) {
      fill(stream_, 2);
      expect_ok(device().launch_graph(executable, stream_));
      expect_filled(7);
    }
    expect_ok(device().destroy_executable(executable));
  }
}

TEST_P(DeviceGraphs, WorkAfterALaunchInItsStreamComesAfterTheGraph) {
  begin();
  fill(stream_, 7);
  follow(side_, stream_);
  fill(side_, 8);
  follow(stream_, side_);
  const ExecutableHandle executable = end_and_instantiate();
  expect_ok(device().launch_graph(executable, side_));
  follow(stream_, side_);
  expect_filled(8);
  expect_ok(device().launch_graph(executable, stream_));
  fill(stream_, 9);
  expect_filled(9);
  expect_ok(device().destroy_executable(executable));
}

TEST_P(DeviceGraphs, AForkThatNeverJoinsGivesNoGraphAndSaysWhatToDo) {
  begin();
  fill(stream_, 1);
  follow(side_, stream_);
  fill(side_, 2);
  expect_capture_error(device().end_capture(stream_));
  EXPECT_EQ(status_of(stream_), CaptureInfo::Status::none);
  EXPECT_EQ(status_of(side_), CaptureInfo::Status::none);
}

TEST_P(DeviceGraphs, AWaitForEagerWorkBreaksTheCaptureAndTheEndSaysSo) {
  events_.push_back(record(side_));
  begin();
  fill(stream_, 1);
  expect_capture_error(device().wait(stream_, events_.back()));
  EXPECT_EQ(status_of(stream_), CaptureInfo::Status::invalidated);
  expect_capture_error(device().capture_tips(stream_));
  expect_capture_error(device().end_capture(stream_));
  EXPECT_EQ(status_of(stream_), CaptureInfo::Status::none);
  begin();  // the stream can be captured again
  fill(stream_, 1);
  end_and_discard();
}

TEST_P(DeviceGraphs, ACaptureEndsInTheThreadThatBeganIt) {
  for (const CaptureMode mode : {CaptureMode::global, CaptureMode::thread_local_}) {
    begin(mode);
    fill(stream_, 1);
    std::thread([&] { expect_capture_error(device().end_capture(stream_)); }).join();
    abandon();
  }
}

TEST_P(DeviceGraphs, ARelaxedCaptureEndsInAnyThread) {
  begin(CaptureMode::relaxed);
  fill(stream_, 1);
  std::thread([&] { end_and_discard(); }).join();
  EXPECT_EQ(status_of(stream_), CaptureInfo::Status::none);
}

TEST_P(DeviceGraphs, ACaptureEndsInTheStreamThatBeganIt) {
  begin();
  fill(stream_, 1);
  follow(side_, stream_);
  fill(side_, 2);
  expect_capture_error(device().end_capture(side_));
  abandon();
}

TEST_P(DeviceGraphs, AStreamIsCapturedOnceAtATime) {
  expect_capture_error(device().end_capture(stream_));
  begin();
  expect_capture_error(device().begin_capture(stream_, CaptureMode::global));
  abandon();
}

}  // namespace
}  // namespace weir::conformance
