// SPDX-License-Identifier: Apache-2.0
// The events of a graph pool, alone: of streams as they are captured, and as they are not.
#include "core/pool/pool_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/sim_graph_fixture.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PoolEventsTest : public test::SimGraphs {
 protected:
  EventHandle recorded(Stream stream) {
    const EventHandle event = *pool_.create_event();
    const Status recorded = pool_.record(event, stream);
    EXPECT_TRUE(recorded.ok()) << recorded.error().message();
    return event;
  }
  template <class Outcome>
  static void expect_error(const Outcome& outcome, ErrorCode code, const std::string& says) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code(), code);
    EXPECT_THAT(outcome.error().message(), HasSubstr(says));
  }

  PoolEvents pool_{device_};
};

TEST_F(PoolEventsTest, WorkThatIsBeingCapturedIsOverOnceTheCaptureIs) {
  begin(a_);
  pool_.begin();
  write(a_, 0);
  const EventHandle event = recorded(a_.in_capture());
  EXPECT_FALSE(*pool_.query(event));
  expect_error(pool_.synchronize(event), ErrorCode::capture,
               "the host can't wait for work that is being captured");
  expect_error(pool_.wait(b_, event), ErrorCode::capture,
               "stream " + std::to_string(b_.id) + " is not being captured, and can't wait");
  pool_.end();
  const auto expect_past = [&] {
    EXPECT_TRUE(*pool_.query(event));
    EXPECT_TRUE(pool_.synchronize(event).ok());
    EXPECT_TRUE(pool_.wait(b_, event).ok());
    EXPECT_TRUE(pool_.wait(b_.in_capture(), event).ok());
  };
  expect_past();
  pool_.begin();  // another
  expect_past();
  EXPECT_EQ(device_.calls(DeviceCall::wait), 0u);
  pool_.end();
  (void)end(a_);
}

// As a driver that gives a new graph's nodes the addresses of an old one's.
class OldNodes final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override { return tips[stream.id]; }
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override {
    ++asked;
    return before[node.value];
  }
  Status add_capture_dependencies(Stream, std::span<const GraphNode> nodes) override {
    added.insert(added.end(), nodes.begin(), nodes.end());
    return {};
  }

  std::map<std::uint64_t, std::vector<GraphNode>> tips;    // by stream
  std::map<std::uint64_t, std::vector<GraphNode>> before;  // by node
  std::vector<GraphNode> added;
  int asked = 0;
};

TEST_F(PoolEventsTest, WhatAStreamHadReachedInOneCaptureItHasNotInTheNext) {
  OldNodes nodes(device_);
  PoolEvents pool(nodes);
  const GraphNode of_a{1}, of_b{2};
  nodes.tips[a_.id] = {of_a};
  nodes.tips[b_.id] = {of_b};
  nodes.before[of_b.value] = {of_a};
  const EventHandle event = *pool.create_event();
  pool.begin();
  ASSERT_TRUE(pool.record(event, a_.in_capture()).ok());
  ASSERT_TRUE(pool.wait(b_.in_capture(), event).ok());
  EXPECT_THAT(nodes.added, IsEmpty());
  EXPECT_EQ(nodes.asked, 2);
  ASSERT_TRUE(pool.wait(b_.in_capture(), event).ok());
  EXPECT_EQ(nodes.asked, 2) << "each node is asked about once";
  pool.end();

  nodes.before.clear();
  pool.begin();
  ASSERT_TRUE(pool.record(event, a_.in_capture()).ok());
  ASSERT_TRUE(pool.wait(b_.in_capture(), event).ok());
  EXPECT_THAT(nodes.added, ElementsAre(of_a));
  pool.end();
}

}  // namespace
}  // namespace weir
