// SPDX-License-Identifier: Apache-2.0
#include "weir/sim_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/sim_memory_helpers.h"

namespace weir {
namespace {

using test::MappedPage;
using test::new_page;
using testing::HasSubstr;

SimOptions with_free_calls() {
  SimOptions options;
  options.costs = {.reserve = 0_ns,
                   .unreserve = 0_ns,
                   .create = 0_ns,
                   .map = 0_ns,
                   .set_access_per_mapping = 0_ns,
                   .unmap_per_mapping = 0_ns,
                   .release = 0_ns,
                   .release_per_mib = 0_ns,
                   .create_event = 0_ns,
                   .destroy_event = 0_ns,
                   .record = 0_ns,
                   .query = 0_ns,
                   .wait = 0_ns,
                   .synchronize = 0_ns,
                   .capture_info = 0_ns,
                   .memory_info = 0_ns,
                   .launch = 0_ns};
  return options;
}

// Clock

TEST(SimClock, StandsStillUntilTheHostDoesSomething) {
  SimDevice device;
  EXPECT_EQ(device.now(), 0_ns);
  device.advance(5_us);
  EXPECT_EQ(device.now(), 5_us);
  device.advance_to(4_us);
  EXPECT_EQ(device.now(), 5_us);
  device.advance_to(9_us);
  EXPECT_EQ(device.now(), 9_us);
}

// Streams and events

class SimTime : public testing::Test {
 protected:
  void kernel(Stream stream, Nanoseconds duration) {
    ASSERT_TRUE(device_.launch(stream, duration).ok());
  }
  EventHandle mark(Stream stream) {
    const EventHandle event = *device_.create_event();
    EXPECT_TRUE(device_.record(event, stream).ok());
    return event;
  }
  // When the work queued so far on `stream` is done.
  Nanoseconds end_of(Stream stream) {
    EXPECT_TRUE(device_.synchronize(mark(stream)).ok());
    return device_.now();
  }

  SimDevice device_{with_free_calls()};
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream();
};

TEST_F(SimTime, KernelsOfAStreamRunOneAfterAnotherBehindTheHost) {
  kernel(a_, 10_us);
  kernel(a_, 5_us);
  EXPECT_EQ(device_.now(), 0_ns);
  EXPECT_EQ(end_of(a_), 15_us);
}

TEST_F(SimTime, AWaitHoldsTheStreamUntilTheEventAndLeavesTheHostAlone) {
  kernel(a_, 10_us);
  kernel(b_, 2_us);
  ASSERT_TRUE(device_.wait(b_, mark(a_)).ok());
  kernel(b_, 5_us);
  EXPECT_EQ(device_.now(), 0_ns);
  EXPECT_EQ(device_.stream_waited(b_), 8_us);
  EXPECT_EQ(device_.stream_waited(a_), 0_ns);
  EXPECT_EQ(end_of(b_), 15_us);
}

TEST_F(SimTime, SynchronizeMovesTheClockToTheEndAndIsAHostWaitOnlyIfItHadTo) {
  kernel(a_, 10_us);
  const EventHandle event = mark(a_);
  ASSERT_TRUE(device_.synchronize(event).ok());
  EXPECT_EQ(device_.now(), 10_us);
  EXPECT_EQ(device_.host_waits(), 1u);
  EXPECT_EQ(device_.time_in(DeviceCall::synchronize), 10_us);
  ASSERT_TRUE(device_.synchronize(event).ok());
  EXPECT_EQ(device_.host_waits(), 1u);
}

TEST_F(SimTime, FinishedAsksWithoutATrace) {
  kernel(a_, 10_us);
  const EventHandle event = mark(a_);
  device_.fail(DeviceCall::query, 1);
  EXPECT_FALSE(device_.finished(event));
  device_.advance(10_us);
  EXPECT_TRUE(device_.finished(event));
  EXPECT_EQ(device_.calls(DeviceCall::query), 0u);
  EXPECT_EQ(device_.now(), 10_us);
  EXPECT_FALSE(device_.finished(EventHandle{999}));
}

TEST_F(SimTime, FinishWaitsForEveryStream) {
  kernel(a_, 10_us);
  kernel(b_, 30_us);
  device_.finish();
  EXPECT_EQ(device_.now(), 30_us);
  EXPECT_EQ(device_.host_waits(), 0u);
}

// Peers of kernels that come when they are told to.
class Peers final : public SimPeers {
 public:
  std::uint64_t arrive(const std::string&) override { return ++last_; }
  Status await(std::uint64_t number) override {
    ++awaited;
    return are_there(number) ? Status() : Status(Error(ErrorCode::device, "nobody came"));
  }
  bool are_there(std::uint64_t number) const override { return number <= there; }

  std::uint64_t there = 0, awaited = 0;  // numbers of kernels

 private:
  std::uint64_t last_ = 0;
};

TEST_F(SimTime, OnlyPeersThatHadNotComeWhenAnEventWasRecordedAreWaitedForWithIt) {
  const auto peers = std::make_shared<Peers>();
  ASSERT_TRUE(device_.launch(a_, {}, 10_us, {peers, "a kernel"}).ok());
  const EventHandle before = mark(a_);
  peers->there = 1;
  const EventHandle after = mark(a_);
  ASSERT_TRUE(device_.synchronize(after).ok());
  EXPECT_EQ(peers->awaited, 0u);
  ASSERT_TRUE(device_.synchronize(before).ok());
  EXPECT_EQ(peers->awaited, 1u);
  peers->there = 0;
  EXPECT_FALSE(device_.synchronize(before).ok());
  EXPECT_TRUE(device_.synchronize(after).ok());
}

TEST_F(SimTime, ADestroyedStreamsPeersAreStillWaitedFor) {
  const auto peers = std::make_shared<Peers>();
  for (const Stream stream : {a_, b_}) {
    ASSERT_TRUE(device_.launch(stream, {}, 10_us, {peers, "a kernel"}).ok());
    ASSERT_TRUE(device_.destroy_stream(stream).ok());
    device_.advance(20_us);  // by the clock it is over
    ASSERT_TRUE(device_.destroy_stream(device_.new_stream()).ok());
  }
  const EventHandle all = *device_.create_event();
  for (const std::uint64_t there : {0, 1, 2}) {
    peers->there = there;
    ASSERT_TRUE(device_.record_context(all).ok());
    EXPECT_EQ(device_.finished(all), there == 2);
    const Status ended = device_.synchronize(all);
    ASSERT_EQ(ended.ok(), there == 2);
    EXPECT_THAT(ended ? "nobody came" : ended.error().message(), HasSubstr("nobody came"));
  }
  const std::uint64_t before = peers->awaited;
  ASSERT_TRUE(device_.record_context(all).ok());
  ASSERT_TRUE(device_.synchronize(all).ok());
  EXPECT_EQ(peers->awaited, before) << "they are there: there is nobody to wait for";
}

TEST_F(SimTime, AnEventThatIsNoneIsRefused) {
  const EventHandle none{4711};
  const auto expect_refused = [](const auto& outcome, const char* call) {
    ASSERT_FALSE(outcome.ok()) << call;
    EXPECT_EQ(outcome.error().code(), ErrorCode::device);
    EXPECT_THAT(outcome.error().message(), HasSubstr(call));
  };
  expect_refused(device_.record(none, a_), "record: ");
  expect_refused(device_.record_context(none), "record_context: ");
  expect_refused(device_.wait(a_, none), "wait: ");
  expect_refused(device_.query(none), "query: ");
  expect_refused(device_.synchronize(none), "synchronize: ");
  expect_refused(device_.destroy_event(none), "destroy_event: ");
}

TEST_F(SimTime, ADestroyedStreamIsRefused) {
  ASSERT_TRUE(device_.destroy_stream(a_).ok());
  EXPECT_FALSE(device_.destroy_stream(a_).ok());
  EXPECT_FALSE(device_.stream(a_.handle).ok());
  EXPECT_EQ(device_.launch(a_, 0_ns).error().code(), ErrorCode::invalid_argument);
  const EventHandle event = *device_.create_event();
  EXPECT_EQ(device_.record(event, a_).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.wait(a_, event).error().code(), ErrorCode::device);
  EXPECT_EQ(device_.capture_info(a_).error().code(), ErrorCode::device);
  const Stream next = device_.new_stream();
  EXPECT_NE(next.id, a_.id) << "ids are not used again";
}

// Memory

TEST(SimMemory, AKernelMayOnlyTouchWhatIsMappedAndAccessible) {
  SimDevice device;
  const Stream stream = device.new_stream();
  const Address address = *device.reserve(4_MiB, 2_MiB);
  const PhysicalHandle handle = *device.create(2_MiB);
  const auto touch = [&](Bytes offset, Bytes bytes) {
    return device.launch(stream, Writes((address + offset).pointer(), bytes), 0_ns);
  };
  EXPECT_THAT(touch(0_B, 1_B).error().message(), HasSubstr("is not mapped"));
  EXPECT_THAT(touch(0_B, Bytes{~std::uint64_t{3}}).error().message(),
              HasSubstr("beyond the last address"));
  ASSERT_TRUE(device.map(address, 2_MiB, handle).ok());
  EXPECT_THAT(touch(0_B, 1_B).error().message(), HasSubstr("lacks set_access"));
  ASSERT_TRUE(device.set_access(address, 2_MiB).ok());
  EXPECT_TRUE(touch(0_B, 2_MiB).ok());
  EXPECT_EQ(touch(2_MiB - 1_B, 2_B).error().code(), ErrorCode::invalid_argument);
  ASSERT_TRUE(device.unmap(address, 2_MiB).ok());
  EXPECT_FALSE(touch(0_B, 1_B).ok());
}

TEST(SimMemory, AllAddressesCanBeReservedAndNoMore) {
  constexpr Bytes kAll = 80_TiB;
  SimDevice device;
  EXPECT_FALSE(device.reserve(kAll + 2_MiB, 2_MiB).ok());
  const Result<Address> all = device.reserve(kAll, 2_MiB);
  ASSERT_TRUE(all.ok()) << all.error().message();
  EXPECT_FALSE(device.reserve(2_MiB, 2_MiB).ok());
  ASSERT_TRUE(device.unreserve(*all, kAll).ok());
  EXPECT_TRUE(device.reserve(2_MiB, 2_MiB).ok());
}

TEST(SimMemory, AReleasedHandleIsGoneForNewMappingsButItsMemoryStaysWhileMapped) {
  SimDevice device;
  const MappedPage page = new_page(device);
  const Address second = *device.reserve(2_MiB, 2_MiB);
  ASSERT_TRUE(device.release(page.handle).ok());
  EXPECT_EQ(device.live().handles, 0u);
  EXPECT_EQ(device.physical_bytes(), 2_MiB);
  EXPECT_FALSE(device.map(second, 2_MiB, page.handle).ok());
  EXPECT_FALSE(device.release(page.handle).ok());
  ASSERT_TRUE(device.unmap(page.address, 2_MiB).ok());
  EXPECT_EQ(device.physical_bytes(), 0_B);
}

// Beside what the conformance suite asks of every device. Each refusal says why, and changes
// nothing.
TEST(SimMemory, WhatADriverRefusesIsRefused) {
  SimDevice device;
  const auto expect_refused = [](const auto& outcome, const std::string& says) {
    ASSERT_FALSE(outcome.ok()) << says;
    EXPECT_EQ(outcome.error().code(), ErrorCode::device);
    EXPECT_THAT(outcome.error().message(), HasSubstr(says));
  };
  const MappedPage page = new_page(device, 4_MiB);
  const Address room = *device.reserve(8_MiB, 2_MiB);
  const PhysicalHandle other = *device.create(2_MiB);
  const Address segment = *device.allocate_segment(4_MiB);
  const std::string multiples = "must be multiples of the granularity";
  expect_refused(device.reserve(3_MiB, 2_MiB), multiples);
  expect_refused(device.reserve(4_MiB, 1_MiB), multiples);
  expect_refused(device.unreserve(room + 2_MiB, 6_MiB), "is not a reservation");
  expect_refused(device.unreserve(segment, 4_MiB), "is not a reservation");
  expect_refused(device.unreserve(page.address, 4_MiB), "has 1 mappings");
  expect_refused(device.create(3_MiB), "is not a multiple of the granularity");
  expect_refused(device.map(room, 2_MiB, PhysicalHandle{4711}), "no handle 4711");
  expect_refused(device.map(room + 1_MiB, 2_MiB, other), "is not aligned");
  expect_refused(device.map(room + 8_MiB, 2_MiB, other), "is not reserved");
  expect_refused(device.map(segment, 2_MiB, other), "is not reserved");
  ASSERT_TRUE(device.map(room + 2_MiB, 2_MiB, other).ok());
  expect_refused(device.map(room, 4_MiB, page.handle), "is mapped already");
  ASSERT_TRUE(device.unmap(room + 2_MiB, 2_MiB).ok());
  expect_refused(device.unmap(page.address + 2_MiB, 2_MiB), "is not exactly one mapping");
  expect_refused(device.unmap(segment, 4_MiB), "is not exactly one mapping");
  for (const Bytes size : {2_MiB, 6_MiB}) {
    expect_refused(device.set_access(page.address, size), "is not a row of whole mappings");
  }
  expect_refused(device.free_segment(segment, 2_MiB), "is no segment");
  expect_refused(device.free_segment(page.address, 4_MiB), "is no segment");
  EXPECT_EQ(device.physical_bytes(), 10_MiB);
  EXPECT_EQ(device.live().handles, 3u);
  EXPECT_EQ(device.live().mappings, 2u);
  EXPECT_EQ(device.live().reservations, 3u);
}

// What it had got by then goes back.
TEST(SimMemory, ASegmentThatCanNotBeUsedLeavesNothing) {
  SimDevice device({.memory = 4_MiB, .mapping_ceiling = 1});
  (void)new_page(device);
  const Result<Address> past_the_ceiling = device.allocate_segment(2_MiB);
  ASSERT_FALSE(past_the_ceiling.ok());
  EXPECT_THAT(past_the_ceiling.error().message(), HasSubstr("the ceiling is 1"));
  const Result<Address> too_large = device.allocate_segment(4_MiB);
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(device.physical_bytes(), 2_MiB);
  EXPECT_EQ(device.live().handles, 1u);
  EXPECT_EQ(device.live().mappings, 1u);
  EXPECT_EQ(device.live().reservations, 1u);
}

}  // namespace
}  // namespace weir
