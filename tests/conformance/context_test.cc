// SPDX-License-Identifier: Apache-2.0
// Events and waits of the whole context: they cover the work of every stream of the process.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class DeviceContext : public ConformanceOnAPage {
 protected:
  // Whether the device has such events; without them the rest is skipped.
  bool has_events() {
    const EventHandle event = new_event();
    const Status recorded = device().record_context(event);
    drop(event);
    return recorded.ok() || recorded.error().code() != ErrorCode::unavailable;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContext, each_kind_of_device(), kind_name);

TEST_P(DeviceContext, AnEventCoversTheWorkOfEveryStream) {
  if (!has_events()) GTEST_SKIP() << "the driver has no events of the whole context";
  const Stream later = c_;
  rig().hold(a_);
  rig().fill(a_, address_, page_size() / 2, 1);
  rig().fill(b_, address_ + page_size() / 2, page_size() / 4, 2);
  const EventHandle event = new_event();
  expect_ok(device().record_context(event));
  EXPECT_FALSE(done(event));
  // A stream that waits for it is behind all of them.
  expect_ok(device().wait(later, event));
  fill(later, 3);
  rig().let_go_soon();
  expect_ok(device().synchronize(event));
  EXPECT_TRUE(done(event));
  finish(later);
  expect_filled(3);
}

TEST_P(DeviceContext, AnEventCoversTheWorkOfAStreamThatWasDestroyed) {
  if (!has_events()) GTEST_SKIP() << "the driver has no events of the whole context";
  const Stream gone = rig().new_stream();
  rig().hold(gone);
  rig().destroy_stream(gone);
  const EventHandle event = new_event();
  expect_ok(device().record_context(event));
  EXPECT_FALSE(done(event));
  rig().let_go_soon();
  expect_ok(device().synchronize(event));
  EXPECT_TRUE(done(event));
}

TEST_P(DeviceContext, TheHostWaitsForTheWorkOfEveryStream) {
  rig().hold(a_);
  const EventHandle of_a = record(a_), of_b = record(b_);
  EXPECT_FALSE(done(of_a));
  rig().let_go_soon();
  expect_ok(device().synchronize_context());
  EXPECT_TRUE(done(of_a));
  EXPECT_TRUE(done(of_b));
}

TEST_P(DeviceContext, TheHostsWaitBreaksNoCapture) {
  for (const CaptureMode mode :
       {CaptureMode::global, CaptureMode::thread_local_, CaptureMode::relaxed}) {
    const Stream captured = rig().new_stream(), other = rig().new_stream();
    expect_ok(device().begin_capture(captured, mode));
    rig().hold(other);
    const EventHandle event = record(other);
    rig().let_go_soon();
    expect_ok(device().synchronize_context());
    EXPECT_TRUE(done(event));
    rig().let_go();
    std::thread([&] { expect_ok(device().synchronize_context()); }).join();
    const Result<GraphHandle> graph = device().end_capture(captured);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    expect_ok(device().destroy_graph(*graph));
  }
}

TEST_P(DeviceContext, AnEventIsRefusedWhileAStreamIsCaptured) {
  if (!has_events()) GTEST_SKIP() << "the driver has no events of the whole context";
  const Stream captured = rig().new_stream();
  expect_ok(device().begin_capture(captured, CaptureMode::relaxed));
  const EventHandle event = new_event();
  const Status recorded = device().record_context(event);
  ASSERT_FALSE(recorded.ok());
  EXPECT_EQ(recorded.error().code(), ErrorCode::capture) << recorded.error().message();
  // It has broken the capture, of a stream that no other waits for by itself.
  const Result<GraphHandle> graph = device().end_capture(captured);
  EXPECT_FALSE(graph.ok());
  expect_ok(device().record_context(event));
  expect_ok(device().synchronize(event));
}

// With another device, whose work may use memory of this one.
class DevicePeers : public DeviceContext {
 protected:
  void SetUp() override {
    DeviceContext::SetUp();
    if (IsSkipped()) return;
    if (rig().peer() == nullptr) GTEST_SKIP() << "there is no device that could be a peer";
    if (!has_events()) GTEST_SKIP() << "the driver has no events of the whole context";
  }
  Device& peer() { return *rig().peer(); }
  // Recorded by the peer, on a stream of its own.
  EventHandle recorded_by_peer(Stream stream) {
    const EventHandle event = peer().create_event().value();
    expect_ok(peer().record(event, stream));
    return event;
  }
  bool done_by_peer(EventHandle event) { return peer().query(event).value(); }
};

INSTANTIATE_TEST_SUITE_P(Devices, DevicePeers, each_kind_of_device(), kind_name);

TEST_P(DevicePeers, AnEventCoversTheWorkOfAPeer) {
  rig().add_peer();
  const Stream far = rig().new_stream_of_peer(), near = rig().new_stream(),
               later = rig().new_stream();
  rig().hold(far);
  rig().fill(far, address_, page_size() / 2, 1);
  rig().fill(near, address_ + page_size() / 2, page_size() / 2, 2);
  const EventHandle event = new_event();
  expect_ok(device().record_context(event));
  EXPECT_FALSE(done(event));
  // A stream that waits for it is behind all of them.
  expect_ok(device().wait(later, event));
  fill(later, 3);
  rig().let_go_soon();
  expect_ok(device().synchronize(event));
  EXPECT_TRUE(done(event));
  finish(later);
  expect_filled(3);
}

TEST_P(DevicePeers, AnEventDoesNotCoverTheWorkOfADeviceThatIsNoPeer) {
  rig().hold(rig().new_stream_of_peer());
  const EventHandle event = new_event();
  expect_ok(device().record_context(event));
  expect_ok(device().synchronize(event));
  // Nor is the device a peer of its peer.
  rig().add_peer();
  const EventHandle of_peer = peer().create_event().value();
  rig().let_go();
  rig().hold(rig().new_stream());
  expect_ok(peer().record_context(of_peer));
  expect_ok(peer().synchronize(of_peer));
  rig().let_go();
  expect_ok(peer().destroy_event(of_peer));
}

TEST_P(DevicePeers, TheHostWaitsForTheWorkOfAPeer) {
  rig().add_peer();
  const Stream far = rig().new_stream_of_peer();
  rig().hold(far);
  const EventHandle event = recorded_by_peer(far);
  EXPECT_FALSE(done_by_peer(event));
  rig().let_go_soon();
  expect_ok(device().synchronize_context());
  EXPECT_TRUE(done_by_peer(event));
  expect_ok(peer().destroy_event(event));
}

TEST_P(DevicePeers, AnEventIsRefusedWhileAStreamOfAPeerIsCaptured) {
  const EventHandle event = new_event();
  const Stream far = rig().new_stream_of_peer();
  expect_ok(peer().begin_capture(far, CaptureMode::relaxed));
  expect_ok(device().record_context(event));  // it is none yet
  rig().add_peer();
  const Status recorded = device().record_context(event);
  ASSERT_FALSE(recorded.ok());
  EXPECT_EQ(recorded.error().code(), ErrorCode::capture) << recorded.error().message();
  const Result<GraphHandle> graph = peer().end_capture(far);
  EXPECT_FALSE(graph.ok());
  expect_ok(device().record_context(event));
  expect_ok(device().synchronize(event));
}

TEST_P(DevicePeers, TheHostsWaitBreaksNoCaptureOfAPeer) {
  rig().add_peer();
  const Stream far = rig().new_stream_of_peer();
  expect_ok(peer().begin_capture(far, CaptureMode::global));
  expect_ok(device().synchronize_context());
  const Result<GraphHandle> graph = peer().end_capture(far);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  expect_ok(peer().destroy_graph(*graph));
}

TEST_P(DevicePeers, ADevicesPeersAreKnownByTheirContexts) {
  EXPECT_TRUE(device().peer_contexts().empty());
  rig().add_peer();
  EXPECT_EQ(device().peer_contexts(), std::vector<const void*>{peer().context()});
  EXPECT_TRUE(peer().peer_contexts().empty());
}

}  // namespace
}  // namespace weir::conformance
