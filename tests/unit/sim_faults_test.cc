// Each call of the device made to fail by script: that one call fails, changes nothing, and is all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::HasSubstr;

template <class T>
Status status_of(Result<T> result) {
  if (result.ok()) return {};
  return std::move(result).error();
}

// Everything that a call could change.
auto held_by(const SimDevice& device) {
  return std::tuple(device.physical_bytes(), device.live_handles(), device.live_mappings(),
                    device.live_events(), device.live_reservations(), device.host_waits());
}

class SimFaults : public testing::TestWithParam<int> {
 protected:
  DeviceCall call() const { return static_cast<DeviceCall>(GetParam()); }

  // Makes the call in a way that succeeds each time, but for those of a capture, which there is
  // not.
  Status make() {
    switch (call()) {
      case DeviceCall::reserve:
        return status_of(device_.reserve(2_MiB, 2_MiB));
      case DeviceCall::unreserve:
        return unreserve_one();
      case DeviceCall::create:
        return status_of(device_.create(2_MiB));
      case DeviceCall::map:
        return map_one();
      case DeviceCall::set_access:
        return device_.set_access(page_.address, page_.size);
      case DeviceCall::unmap:
        return unmap_one();
      case DeviceCall::release:
        return release_one();
      default:
        return make_with_events();
    }
  }
  Status make_with_events() {
    switch (call()) {
      case DeviceCall::create_event:
        return status_of(device_.create_event());
      case DeviceCall::destroy_event:
        return device_.destroy_event(*device_.create_event());
      case DeviceCall::record:
        return device_.record(event_, stream_);
      case DeviceCall::wait:
        return device_.wait(stream_, event_);
      case DeviceCall::query:
        return status_of(device_.query(event_));
      case DeviceCall::synchronize:
        return device_.synchronize(event_);
      case DeviceCall::capture_info:
        return status_of(device_.capture_info(stream_));
      case DeviceCall::capture_tips:
        return status_of(device_.capture_tips(stream_));
      case DeviceCall::add_capture_dependencies:
        return device_.add_capture_dependencies(stream_, {});
      case DeviceCall::memory_info:
        return status_of(device_.memory_info());
      default:
        return Error(ErrorCode::invalid_argument, "a call that this test does not know");
    }
  }
  bool needs_a_capture() const {
    return call() == DeviceCall::capture_tips || call() == DeviceCall::add_capture_dependencies;
  }

  // These leave what they prepared to the comparison: the same before and after a failed call.
  Status unreserve_one() {
    if (prepared_.value == 0) prepared_ = *device_.reserve(2_MiB, 2_MiB);
    Status done = device_.unreserve(prepared_, 2_MiB);
    if (done.ok()) prepared_ = {};
    return done;
  }
  Status map_one() { return device_.map(*device_.reserve(2_MiB, 2_MiB), 2_MiB, page_.handle); }
  Status unmap_one() {
    if (prepared_.value == 0) {
      prepared_ = test::map_at_new_address(device_, page_.handle, page_.size);
    }
    Status done = device_.unmap(prepared_, page_.size);
    if (done.ok()) prepared_ = {};
    return done;
  }
  Status release_one() {
    if (prepared_handle_.value == 0) prepared_handle_ = *device_.create(2_MiB);
    Status done = device_.release(prepared_handle_);
    if (done.ok()) prepared_handle_ = {};
    return done;
  }

  SimDevice device_;
  const Stream stream_ = device_.new_stream();
  const test::MappedPage page_ = test::new_page(device_);
  const EventHandle event_ = *device_.create_event();
  Address prepared_;
  PhysicalHandle prepared_handle_;
};

TEST_P(SimFaults, TheNthCallFailsOnceWithTheScriptedError) {
  device_.fail(call(), 2, ErrorCode::unavailable);
  const ErrorCode unscripted = ErrorCode::capture;
  const auto expect_unscripted = [&](const Status& done) {
    if (needs_a_capture()) {
      EXPECT_EQ(done.error().code(), unscripted);
    } else {
      EXPECT_TRUE(done.ok()) << done.error().message();
    }
  };
  expect_unscripted(make());
  const Status scripted = make();
  ASSERT_FALSE(scripted.ok());
  EXPECT_EQ(scripted.error().code(), ErrorCode::unavailable);
  EXPECT_THAT(scripted.error().message(), HasSubstr(std::string(name_of(call()))));
  EXPECT_THAT(scripted.error().message(), HasSubstr("scripted fault"));
  expect_unscripted(make());
}

TEST_P(SimFaults, AFailedCallChangesNothingButTheCountAndTheClock) {
  // What the call needs is prepared by a first call that fails; the second is then the call alone.
  device_.fail(call(), 1);
  device_.fail(call(), 2);
  ASSERT_FALSE(make().ok());
  const bool prepares_each_time = call() == DeviceCall::map || call() == DeviceCall::destroy_event;
  const auto before = held_by(device_);
  const std::uint64_t calls = device_.calls(call());
  ASSERT_FALSE(make().ok());
  EXPECT_EQ(device_.calls(call()), calls + 1);
  if (prepares_each_time) {
    EXPECT_EQ(device_.physical_bytes(), 2_MiB);
    EXPECT_EQ(device_.live_mappings(), 1u);
    EXPECT_EQ(device_.live_events(), call() == DeviceCall::map ? 1u : 3u);
  } else {
    EXPECT_EQ(held_by(device_), before);
  }
}

INSTANTIATE_TEST_SUITE_P(EachCall, SimFaults, testing::Range(0, kDeviceCalls),
                         [](const testing::TestParamInfo<int>& each) {
                           return std::string(name_of(static_cast<DeviceCall>(each.param)));
                         });

TEST(SimFaultScripts, SeveralFaultsOfOneCallEachComeInTheirTurn) {
  SimDevice device;
  device.fail(DeviceCall::create, 1, ErrorCode::out_of_memory);
  device.fail(DeviceCall::create, 3);
  EXPECT_EQ(device.create(2_MiB).error().code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(device.create(2_MiB).ok());
  EXPECT_EQ(device.create(2_MiB).error().code(), ErrorCode::device);
  EXPECT_TRUE(device.create(2_MiB).ok());
}

TEST(SimFaultScripts, CallsMadeBeforeTheScriptDoNotCount) {
  SimDevice device;
  ASSERT_TRUE(device.create(2_MiB).ok());
  device.fail(DeviceCall::create, 1);
  EXPECT_FALSE(device.create(2_MiB).ok());
}

TEST(SimFaultScripts, AFailedWaitOrdersNothing) {
  SimDevice device;
  const test::MappedPage page = test::new_page(device);
  const Stream a = device.new_stream(), b = device.new_stream();
  const EventHandle event = *device.create_event();
  ASSERT_TRUE(device.launch(a, Writes(page.at(), 512_B), 1_us).ok());
  ASSERT_TRUE(device.record(event, a).ok());
  device.fail(DeviceCall::wait, 1);
  ASSERT_FALSE(device.wait(b, event).ok());
  ASSERT_TRUE(device.launch(b, Writes(page.at(), 512_B), 1_us).ok());
  EXPECT_EQ(device.race_count(), 1u);
}

}  // namespace
}  // namespace weir
