// SPDX-License-Identifier: Apache-2.0
// Captures and graphs: what every device does.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class DeviceCaptures : public ConformanceOnAPage {
 protected:
  CaptureInfo info(Stream stream) {
    const Result<CaptureInfo> info = device().capture_info(stream);
    EXPECT_TRUE(info.ok()) << info.error().message();
    return info.ok() ? *info : CaptureInfo{};
  }
  CaptureInfo::Status status(Stream stream) {
    const Result<CaptureInfo::Status> status = device().capture_status(stream);
    EXPECT_TRUE(status.ok()) << status.error().message();
    EXPECT_EQ(info(stream).status, *status);
    return *status;
  }
  std::vector<GraphNode> tips(Stream stream) {
    const Result<std::vector<GraphNode>> tips = device().capture_tips(stream);
    EXPECT_TRUE(tips.ok()) << tips.error().message();
    return tips.ok() ? *tips : std::vector<GraphNode>{};
  }
  std::set<GraphNode> dependencies(GraphNode node) {
    const Result<std::vector<GraphNode>> nodes = device().node_dependencies(node);
    EXPECT_TRUE(nodes.ok()) << nodes.error().message();
    return nodes.ok() ? std::set(nodes->begin(), nodes->end()) : std::set<GraphNode>{};
  }

  void begin(Stream stream, CaptureMode mode = CaptureMode::global) {
    expect_ok(device().begin_capture(stream, mode));
  }
  void TearDown() override {
    for (const ExecutableHandle each : executables_) expect_ok(device().destroy_executable(each));
    ConformanceOnAPage::TearDown();
  }
  // Ends a capture, and makes what can be launched of its graph. It goes at the end.
  ExecutableHandle end(Stream stream) {
    const Result<GraphHandle> graph = device().end_capture(stream);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    if (!graph) return {};
    const Result<ExecutableHandle> executable = device().instantiate(*graph);
    EXPECT_TRUE(executable.ok()) << executable.error().message();
    expect_ok(device().destroy_graph(*graph));
    if (!executable) return {};
    executables_.insert(*executable);
    return *executable;
  }
  // Ends a capture of which it does not matter whether it was broken.
  void abandon(Stream stream) {
    if (const Result<GraphHandle> graph = device().end_capture(stream); graph.ok()) {
      expect_ok(device().destroy_graph(*graph));
    }
    EXPECT_EQ(status(stream), CaptureInfo::Status::none);
  }
  // The node that was captured last in `stream`.
  GraphNode last_node(Stream stream) {
    const std::vector<GraphNode> nodes = tips(stream);
    EXPECT_EQ(nodes.size(), 1u);
    return nodes.empty() ? GraphNode{} : nodes.front();
  }
  void run(ExecutableHandle executable, Stream stream) {
    expect_ok(device().launch_graph(executable, stream));
    finish(stream);
  }
  template <class T>
  static void expect_not_legal(const Result<T>& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::capture) << result.error().message();
    EXPECT_FALSE(result.error().message().empty());
  }
  // At once, or when the driver's own thread comes to it.
  static void expect_gone(const std::weak_ptr<int>& held) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!held.expired() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(held.expired());
  }
  // The capture of `stream` is broken, and once it ended the stream is as it was.
  void expect_broken(Stream stream) {
    EXPECT_EQ(status(stream), CaptureInfo::Status::invalidated);
    expect_not_legal(device().capture_tips(stream));
    expect_not_legal(device().end_capture(stream));
    EXPECT_EQ(status(stream), CaptureInfo::Status::none);
    fill(stream, 77);
    finish(stream);
    expect_filled(77);
  }

  std::set<ExecutableHandle> executables_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceCaptures, each_kind_of_device(), kind_name);

TEST_P(DeviceCaptures, AStreamIsCapturedFromBeginToEndUnderAnIdOfItsOwn) {
  std::set<std::uint64_t> ids{0};
  for (const CaptureMode mode :
       {CaptureMode::global, CaptureMode::thread_local_, CaptureMode::relaxed}) {
    begin(a_, mode);
    EXPECT_EQ(status(a_), CaptureInfo::Status::active);
    EXPECT_TRUE(ids.insert(info(a_).id).second);
    EXPECT_EQ(status(b_), CaptureInfo::Status::none);
    (void)end(a_);
    EXPECT_EQ(status(a_), CaptureInfo::Status::none);
  }
}

TEST_P(DeviceCaptures, AnotherThreadMayAskMeanwhileHowAStreamStands) {
  std::atomic<bool> stop{false};
  std::thread asks([&] {
    while (!stop) {
      EXPECT_TRUE(device().capture_status(a_).ok());
    }
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (std::chrono::steady_clock::now() < until) {
    begin(a_);
    const Result<GraphHandle> graph = device().end_capture(a_);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    expect_ok(device().destroy_graph(*graph));
  }
  stop = true;
  asks.join();
}

TEST_P(DeviceCaptures, WorkRunsAtEachLaunchAndNotBefore) {
  for (const CaptureMode mode :
       {CaptureMode::global, CaptureMode::thread_local_, CaptureMode::relaxed}) {
    fill(a_, 1);
    begin(a_, mode);
    fill(a_, 7);
    const ExecutableHandle executable = end(a_);
    finish(a_);
    expect_filled(1);
    for (const Stream stream : {a_, b_}) {
      fill(stream, 2);
      run(executable, stream);
      expect_filled(7);
    }
  }
}

TEST_P(DeviceCaptures, WorkAfterALaunchInItsStreamComesAfterTheGraph) {
  begin(a_);
  fill(a_, 7);
  order(a_, b_);
  fill(b_, 8);
  order(b_, a_);
  const ExecutableHandle executable = end(a_);
  expect_ok(device().launch_graph(executable, b_));
  order(b_, a_);
  finish(a_);
  expect_filled(8);
  expect_ok(device().launch_graph(executable, a_));
  fill(a_, 9);
  finish(a_);
  expect_filled(9);
}

TEST_P(DeviceCaptures, AStreamJoinsByWaitingAndItsWorkIsOrderedInTheGraph) {
  begin(a_);
  fill(a_, 1);
  order(a_, b_);
  EXPECT_EQ(status(b_), CaptureInfo::Status::active);
  EXPECT_EQ(info(b_).id, info(a_).id);
  EXPECT_EQ(tips(b_), tips(a_));
  fill(b_, 2);
  order(b_, a_);
  fill(a_, 3);
  const ExecutableHandle executable = end(a_);
  EXPECT_EQ(status(b_), CaptureInfo::Status::none);
  run(executable, b_);
  expect_filled(3);
}

TEST_P(DeviceCaptures, ANodeDependsOnWhatItsStreamDidAndWaitedFor) {
  begin(a_);
  EXPECT_TRUE(tips(a_).empty());
  fill(a_, 1);
  const GraphNode first = last_node(a_);
  order(a_, b_);
  EXPECT_EQ(last_node(a_), first) << "a record adds no node";
  fill(b_, 2);
  const GraphNode beside = last_node(b_);
  fill(a_, 3);
  const GraphNode second = last_node(a_);
  order(b_, a_);
  fill(a_, 4);
  EXPECT_TRUE(dependencies(first).empty());
  EXPECT_EQ(dependencies(beside), std::set{first});
  EXPECT_EQ(dependencies(second), std::set{first});
  EXPECT_EQ(dependencies(last_node(a_)), (std::set{beside, second}));
  (void)end(a_);
}

TEST_P(DeviceCaptures, ADependencyIsAddedToThoseThatAreThere) {
  for (const std::size_t count : {2, 8, 9, 40}) {
    begin(a_);
    std::vector<GraphNode> nodes;
    while (nodes.size() < count) {
      fill(a_, 1);
      nodes.push_back(last_node(a_));
    }
    const std::set<GraphNode> all(nodes.begin(), nodes.end());
    EXPECT_EQ(all.size(), count);
    expect_ok(device().add_capture_dependencies(a_, std::span(nodes).first(count - 1)));
    const std::vector<GraphNode> now = tips(a_);
    EXPECT_EQ(std::set(now.begin(), now.end()), all);
    fill(a_, 2);
    EXPECT_EQ(dependencies(last_node(a_)), all);
    (void)end(a_);
  }
}

TEST_P(DeviceCaptures, AnAddedDependencyOrdersAsAWaitDoes) {
  begin(a_);
  order(a_, b_);
  fill(b_, 1);
  const std::vector<GraphNode> other = tips(b_);
  expect_ok(device().add_capture_dependencies(a_, other));
  EXPECT_EQ(tips(a_), other);
  fill(a_, 2);
  const std::vector<GraphNode> mine = tips(a_);
  ASSERT_EQ(mine.size(), 1u);
  EXPECT_EQ(dependencies(mine[0]), std::set(other.begin(), other.end()));
  run(end(a_), a_);
  expect_filled(2);
}

TEST_P(DeviceCaptures, WorkThatDoesNotJoinAgainBreaksTheEnd) {
  begin(a_);
  fill(a_, 1);
  order(a_, b_);
  fill(b_, 2);
  expect_not_legal(device().end_capture(a_));
  for (const Stream stream : {a_, b_}) EXPECT_EQ(status(stream), CaptureInfo::Status::none);
  begin(a_);
  fill(a_, 3);
  run(end(a_), b_);
  expect_filled(3);
}

TEST_P(DeviceCaptures, AWaitForAnEagerEventBreaksTheCapture) {
  const EventHandle eager = record(b_);
  begin(a_);
  expect_not_legal(device().wait(a_, eager));
  expect_broken(a_);
}

TEST_P(DeviceCaptures, AWaitForAnotherCaptureIsRefused) {
  begin(a_);
  begin(b_);
  const EventHandle other = record(b_);
  expect_not_legal(device().wait(a_, other));
  // Whether the second one survives is the device's business.
  for (const Stream stream : {a_, b_}) abandon(stream);
}

TEST_P(DeviceCaptures, AskingForAnEventOfTheCaptureBreaksIt) {
  begin(a_);
  fill(a_, 1);
  const EventHandle event = record(a_);
  EXPECT_FALSE(device().query(event).ok());
  expect_broken(a_);
}

TEST_P(DeviceCaptures, AskingForTheIdOfACapturedStreamBreaksTheCapture) {
  begin(a_);
  fill(a_, 1);
  const Result<Stream> asked = device().stream(a_.handle);
  ASSERT_FALSE(asked.ok());
  EXPECT_EQ(asked.error().code(), ErrorCode::capture) << asked.error().message();
  expect_broken(a_);
}

TEST_P(DeviceCaptures, AskingForTheIdOfAnotherStreamBreaksNothing) {
  begin(a_);
  fill(a_, 5);
  for (void* const handle : {b_.handle, static_cast<void*>(nullptr)}) {
    const Result<Stream> asked = device().stream(handle);
    ASSERT_TRUE(asked.ok()) << asked.error().message();
  }
  run(end(a_), a_);
  expect_filled(5);
}

TEST_P(DeviceCaptures, OfACapturedStreamTheHandleSays) {
  begin(a_);
  fill(a_, 6);
  const Stream by_handle = Stream::of_captured(a_.handle);
  EXPECT_EQ(info(by_handle).id, info(a_).id);
  EXPECT_EQ(tips(by_handle), tips(a_));
  expect_ok(device().add_capture_dependencies(by_handle, tips(by_handle)));
  (void)end(a_);
}

TEST_P(DeviceCaptures, AskingForAnEagerEventBreaksNoCapture) {
  const EventHandle eager = record(b_);
  begin(a_);
  fill(a_, 4);
  expect_ok(device().synchronize(eager));
  const Result<bool> done = device().query(eager);
  ASSERT_TRUE(done.ok()) << done.error().message();
  EXPECT_TRUE(*done);
  run(end(a_), a_);
  expect_filled(4);
}

TEST_P(DeviceCaptures, AnEventNeverRecordedOrdersNothing) {
  const EventHandle event = new_event();
  begin(a_);
  expect_ok(device().wait(a_, event));
  EXPECT_TRUE(tips(a_).empty());
  (void)end(a_);
}

TEST_P(DeviceCaptures, MemoryMappedDuringACaptureIsUsedByItsGraph) {
  begin(a_);
  const Address alias = map(handle_, page_size());
  rig().fill(a_, alias, page_size(), 5);
  run(end(a_), a_);
  expect_filled(5);
}

TEST_P(DeviceCaptures, WhatAGraphRetainsIsHeldUntilItAndItsLaunchesAreGone) {
  auto object = std::make_shared<int>(7);
  const std::weak_ptr<int> held = object;
  begin(a_);
  fill(a_, 4);
  expect_ok(device().retain(a_, std::move(object)));
  const ExecutableHandle executable = end(a_);
  EXPECT_FALSE(held.expired()) << "the executable has it, when the graph is destroyed";
  rig().hold(b_);
  expect_ok(device().launch_graph(executable, b_));
  executables_.erase(executable);
  expect_ok(device().destroy_executable(executable));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(held.expired()) << "the launch has it";
  rig().let_go();
  finish(b_);
  expect_gone(held);
  expect_filled(4);
}

TEST_P(DeviceCaptures, WhatAGraphRetainsGoesWithItWhereItIsNeverLaunched) {
  auto object = std::make_shared<int>(7);
  const std::weak_ptr<int> held = object;
  begin(a_);
  fill(a_, 4);
  expect_ok(device().retain(a_, std::move(object)));
  const Result<GraphHandle> graph = device().end_capture(a_);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_FALSE(held.expired());
  expect_ok(device().destroy_graph(*graph));
  expect_gone(held);
}

TEST_P(DeviceCaptures, OnlyACaptureRetains) {
  auto object = std::make_shared<int>(7);
  const std::weak_ptr<int> held = object;
  expect_not_legal(device().retain(a_, std::move(object)));
  expect_gone(held);
}

TEST_P(DeviceCaptures, CapturesThatCantBeAreRefused) {
  expect_not_legal(device().end_capture(a_));
  const Result<Stream> legacy = device().stream(nullptr);
  ASSERT_TRUE(legacy.ok()) << legacy.error().message();
  expect_not_legal(device().begin_capture(*legacy, CaptureMode::relaxed));
  EXPECT_EQ(status(a_), CaptureInfo::Status::none);
  begin(a_);
  expect_not_legal(device().begin_capture(a_, CaptureMode::global));
  EXPECT_EQ(status(a_), CaptureInfo::Status::active);
  (void)end(a_);
}

TEST_P(DeviceCaptures, ACaptureEndsInTheThreadThatBeganItUnlessItIsRelaxed) {
  for (const CaptureMode mode : {CaptureMode::global, CaptureMode::thread_local_}) {
    begin(a_, mode);
    fill(a_, 1);
    std::thread([&] { expect_not_legal(device().end_capture(a_)); }).join();
    abandon(a_);
  }
  begin(a_, CaptureMode::relaxed);
  fill(a_, 1);
  std::thread([&] { (void)end(a_); }).join();
  EXPECT_EQ(status(a_), CaptureInfo::Status::none);
}

TEST_P(DeviceCaptures, ACaptureEndsInTheStreamThatBeganIt) {
  begin(a_);
  fill(a_, 1);
  order(a_, b_);
  fill(b_, 2);
  expect_not_legal(device().end_capture(b_));
  abandon(a_);
}

}  // namespace
}  // namespace weir::conformance
