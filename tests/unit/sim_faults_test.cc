// SPDX-License-Identifier: Apache-2.0
// Each call of the device made to fail by script: that one call fails, changes nothing, and is all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
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
  return std::tuple(device.physical_bytes(), device.live(), device.host_waits());
}

class SimFaults : public testing::TestWithParam<int> {
 protected:
  DeviceCall call() const { return static_cast<DeviceCall>(GetParam()); }

  // Makes the call in a way that succeeds each time.
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
      case DeviceCall::allocate_segment:
        return status_of(device_.allocate_segment(2_MiB));
      case DeviceCall::free_segment:
        return free_one_segment();
      default:
        return make_with_host_memory();
    }
  }
  Status make_with_host_memory() {
    switch (call()) {
      case DeviceCall::allocate_host:
        return status_of(device_.allocate_host(2_MiB));
      case DeviceCall::free_host:
        return free_host_memory();
      case DeviceCall::copy_stream:
        return status_of(device_.copy_stream(Device::Direction::to_host));
      case DeviceCall::copy_to_host:
        return device_.copy_to_host(host_memory(), page_.address, page_.size, stream_);
      case DeviceCall::copy_to_device:
        return device_.copy_to_device(page_.address, host_memory(), page_.size, stream_);
      case DeviceCall::fill_with_zeros:
        return device_.fill_with_zeros(page_.address, page_.size, stream_);
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
      case DeviceCall::record_context:
        return device_.record_context(event_);
      case DeviceCall::synchronize_context:
        return device_.synchronize_context();
      case DeviceCall::memory_info:
        return status_of(device_.memory_info());
      default:
        return make_with_captures();
    }
  }
  Status make_with_captures() {
    switch (call()) {
      case DeviceCall::capture_info:
        return status_of(device_.capture_info(stream_));
      case DeviceCall::capture_tips:
        return status_of(device_.capture_tips(captured()));
      case DeviceCall::add_capture_dependencies:
        return device_.add_capture_dependencies(captured(), {});
      case DeviceCall::node_dependencies:
        return status_of(device_.node_dependencies(device_.capture_tips(captured())->at(0)));
      case DeviceCall::retain:
        return device_.retain(captured(), nullptr);
      case DeviceCall::begin_capture:
        return device_.begin_capture(device_.new_stream(), CaptureMode::global);
      case DeviceCall::end_capture:
        return status_of(device_.end_capture(captured()));
      default:
        return make_with_graphs();
    }
  }
  Status make_with_graphs() {
    if (graph_.value == 0) graph_ = *device_.end_capture(captured());
    if (call() == DeviceCall::instantiate) return status_of(device_.instantiate(graph_));
    if (call() == DeviceCall::destroy_graph) {
      Status done = device_.destroy_graph(graph_);
      if (done.ok()) graph_ = {};
      return done;
    }
    if (executable_.value == 0) executable_ = *device_.instantiate(graph_);
    if (call() == DeviceCall::launch_graph) return device_.launch_graph(executable_, stream_);
    if (call() == DeviceCall::destroy_executable) {
      Status done = device_.destroy_executable(executable_);
      if (done.ok()) executable_ = {};
      return done;
    }
    return Error(ErrorCode::invalid_argument, "a call that this test does not know");
  }
  // stream_, being captured, after a kernel.
  Stream captured() {
    if (device_.capture_info(stream_)->status == CaptureInfo::Status::none) {
      EXPECT_TRUE(device_.begin_capture(stream_, CaptureMode::global).ok());
      EXPECT_TRUE(device_.launch(stream_, Writes(page_.at(), 512_B), 1_us).ok());
    }
    return stream_;
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
  Status free_one_segment() {
    if (prepared_segment_ == Address{}) prepared_segment_ = *device_.allocate_segment(2_MiB);
    Status done = device_.free_segment(prepared_segment_, 2_MiB);
    if (done.ok()) prepared_segment_ = {};
    return done;
  }
  void* host_memory() {
    if (host_memory_ == nullptr) host_memory_ = *device_.allocate_host(page_.size);
    return host_memory_;
  }
  Status free_host_memory() {
    Status done = device_.free_host(host_memory(), page_.size);
    if (done.ok()) host_memory_ = nullptr;
    return done;
  }
  Status release_one() {
    if (prepared_handle_.value == 0) prepared_handle_ = *device_.create(2_MiB);
    Status done = device_.release(prepared_handle_);
    if (done.ok()) prepared_handle_ = {};
    return done;
  }

  SimDevice device_;
  Address prepared_segment_;
  const Stream stream_ = device_.new_stream();
  const test::MappedPage page_ = test::new_page(device_);
  const EventHandle event_ = *device_.create_event();
  Address prepared_;
  void* host_memory_ = nullptr;
  PhysicalHandle prepared_handle_;
  GraphHandle graph_;
  ExecutableHandle executable_;
};

TEST_P(SimFaults, TheNthCallFailsOnceWithTheScriptedError) {
  device_.fail(call(), 2, ErrorCode::unavailable);
  const Status before = make();
  EXPECT_TRUE(before.ok()) << before.error().message();
  const Status scripted = make();
  ASSERT_FALSE(scripted.ok());
  EXPECT_EQ(scripted.error().code(), ErrorCode::unavailable);
  EXPECT_THAT(scripted.error().message(), HasSubstr(std::string(name_of(call()))));
  EXPECT_THAT(scripted.error().message(), HasSubstr("scripted fault"));
  const Status after = make();
  EXPECT_TRUE(after.ok()) << after.error().message();
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
    EXPECT_EQ(device_.live().mappings, 1u);
    EXPECT_EQ(device_.live().events, call() == DeviceCall::map ? 1u : 3u);
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

TEST(DeviceCalls, EachHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDeviceCalls; ++i) names.insert(name_of(static_cast<DeviceCall>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kDeviceCalls));
  EXPECT_FALSE(names.contains("?"));
  EXPECT_EQ(name_of(DeviceCall::reserve), "reserve");
  EXPECT_EQ(name_of(DeviceCall::memory_info), "memory_info");
}

}  // namespace
}  // namespace weir
