// SPDX-License-Identifier: Apache-2.0
// Streams, events, clocks and threads: what every device does.
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class DeviceEvents : public ConformanceOnAPage {};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceEvents, each_kind_of_device(), kind_name);

TEST_P(DeviceEvents, AStreamIsTheSameWhoeverAsks) {
  EXPECT_EQ(device().stream(a_.handle)->id, a_.id);
  std::thread([&] { EXPECT_EQ(device().stream(a_.handle)->id, a_.id); }).join();
  EXPECT_EQ(std::set({a_.id, b_.id, c_.id}).size(), 3u);
}

TEST_P(DeviceEvents, TheNullHandleIsTheLegacyDefaultStream) {
  const Result<Stream> stream = device().stream(nullptr);
  ASSERT_TRUE(stream.ok()) << stream.error().message();
  EXPECT_EQ(device().stream(nullptr)->id, stream->id);
  EXPECT_NE(stream->id, a_.id);
  fill(*stream, 9);
  finish(*stream);
  expect_filled(9);
}

TEST_P(DeviceEvents, AnIdIsNotUsedAgainAfterItsStreamIsGone) {
  std::set<std::uint64_t> ids{a_.id, b_.id, c_.id};
  for (int i = 0; i < 20; ++i) {
    const Stream stream = rig().new_stream();
    EXPECT_TRUE(ids.insert(stream.id).second);
    rig().destroy_stream(stream);
  }
}

TEST_P(DeviceEvents, AnEventThatWasNeverRecordedIsDone) {
  const EventHandle event = new_event();
  EXPECT_TRUE(done(event));
  expect_ok(device().synchronize(event));
  expect_ok(device().wait(a_, event));
  finish(a_);
}

TEST_P(DeviceEvents, AnEventIsDoneWhenTheWorkBeforeItIs) {
  rig().hold(a_);
  fill(a_, 1);
  const EventHandle event = record(a_);
  EXPECT_FALSE(done(event));
  rig().let_go_soon();
  expect_ok(device().synchronize(event));
  EXPECT_TRUE(done(event));
  expect_filled(1);
}

TEST_P(DeviceEvents, WorkOnOtherStreamsGoesOn) {
  rig().hold(a_);
  const EventHandle held = record(a_);
  fill(b_, 2);
  finish(b_);
  EXPECT_FALSE(done(held));
  expect_filled(2);
  rig().let_go();
  expect_ok(device().synchronize(held));
}

TEST_P(DeviceEvents, AWaitOrdersStreamsAndDoesNotHoldTheHost) {
  rig().hold(a_);
  fill(a_, 1);
  const EventHandle first = record(a_);
  expect_ok(device().wait(b_, first));
  fill(b_, 2);
  const EventHandle second = record(b_);
  expect_ok(device().wait(c_, second));
  fill(c_, 3);
  const EventHandle third = record(c_);
  // Getting here at all shows that the host was not held.
  EXPECT_FALSE(done(first));
  EXPECT_FALSE(done(third));
  rig().let_go_soon();
  expect_ok(device().synchronize(third));
  EXPECT_TRUE(done(first));
  EXPECT_TRUE(done(second));
  expect_filled(3);
}

TEST_P(DeviceEvents, AWaitIsForTheRecordMadeBeforeIt) {
  const EventHandle event = record(a_);
  expect_ok(device().wait(b_, event));
  rig().hold(a_);
  expect_ok(device().record(event, a_));
  fill(b_, 4);
  finish(b_);  // would not return, had b waited for what a is held in
  EXPECT_FALSE(done(event));
  expect_filled(4);
  rig().let_go();
  expect_ok(device().synchronize(event));
}

TEST_P(DeviceEvents, AnEventMayGoWhileAStreamStillWaitsForIt) {
  rig().hold(a_);
  fill(a_, 1);
  const EventHandle event = record(a_);
  expect_ok(device().wait(b_, event));
  drop(event);
  fill(b_, 2);
  const EventHandle last = record(b_);
  EXPECT_FALSE(done(last));
  rig().let_go_soon();
  expect_ok(device().synchronize(last));
  expect_filled(2);
}

TEST_P(DeviceEvents, NoStreamIsCapturedUnlessSomebodyCapturesIt) {
  const Result<CaptureInfo> info = device().capture_info(a_);
  ASSERT_TRUE(info.ok()) << info.error().message();
  EXPECT_EQ(info->status, CaptureInfo::Status::none);
  EXPECT_EQ(info->id, 0u);
  const Result<std::vector<GraphNode>> tips = device().capture_tips(a_);
  ASSERT_FALSE(tips.ok());
  EXPECT_EQ(tips.error().code(), ErrorCode::capture);
  const Status added = device().add_capture_dependencies(a_, {});
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.error().code(), ErrorCode::capture) << added.error().message();
}

TEST_P(DeviceEvents, TheClockNeverGoesBack) {
  const Nanoseconds start = device().now();
  finish(a_);
  EXPECT_GE(device().now(), start);
}

TEST_P(DeviceEvents, ManyThreadsMayCallAtOnce) {
  constexpr int kThreads = 8, kRounds = 20;
  const auto work = [&](std::uint32_t seed) {
    const Stream stream = rig().new_stream();
    const Bytes size = page_size();
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const Address range = reserve(size * 2);
      const PhysicalHandle handle = create(size);
      map(range, size, handle);
      map(range + size, size, handle);
      rig().fill(stream, range, size, seed + round);
      finish(stream);
      rig().expect_filled(range + size, size, seed + round);
      for (const Address each : {range, range + size}) unmap(each);
      drop(handle);
      unreserve(range);
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i * 1000);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weir::conformance
