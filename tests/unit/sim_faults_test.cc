// SPDX-License-Identifier: Apache-2.0
// Each call of the device made to fail by script: that one call fails, changes nothing, and is all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::HasSubstr;

// A device, and what the calls below need of it.
struct Scene {
  SimDevice device;
  const Stream stream = device.new_stream();
  const test::MappedPage page = test::new_page(device);
  EventHandle event = *device.create_event();
  Address address;
  PhysicalHandle handle;
  void* host = nullptr;
  GraphHandle graph;
  ExecutableHandle executable;

  void capture() {
    EXPECT_TRUE(device.begin_capture(stream, CaptureMode::global).ok());
    EXPECT_TRUE(device.launch(stream, Writes(page.at(), 512_B), 1_us).ok());
  }
  void make_graph() {
    capture();
    graph = *device.end_capture(stream);
  }
  void make_executable() {
    make_graph();
    executable = *device.instantiate(graph);
  }
};

Status status_of(Status status) { return status; }
template <class T>
Status status_of(Result<T> result) {
  return result.ok() ? Status() : std::move(result).error();
}

// A call, and what has to be there for it.
struct Row {
  DeviceCall call;
  void (*prepare)(Scene& s);
  Status (*make)(Scene& s);
};
void nothing(Scene&) {}
void reserve_one(Scene& s) { s.address = *s.device.reserve(2_MiB, 2_MiB); }
void host_memory(Scene& s) { s.host = *s.device.allocate_host(2_MiB); }
void captured(Scene& s) { s.capture(); }

#define CALL(expression) [](Scene& s) { return status_of(s.device.expression); }
const Row kRows[] = {
    {DeviceCall::reserve, nothing, CALL(reserve(2_MiB, 2_MiB))},
    {DeviceCall::unreserve, reserve_one, CALL(unreserve(s.address, 2_MiB))},
    {DeviceCall::create, nothing, CALL(create(2_MiB))},
    {DeviceCall::map, reserve_one, CALL(map(s.address, 2_MiB, s.page.handle))},
    {DeviceCall::set_access, nothing, CALL(set_access(s.page.address, s.page.size))},
    {DeviceCall::unmap,
     [](Scene& s) { s.address = test::map_at_new_address(s.device, s.page.handle, s.page.size); },
     CALL(unmap(s.address, s.page.size))},
    {DeviceCall::release, [](Scene& s) { s.handle = *s.device.create(2_MiB); },
     CALL(release(s.handle))},
    {DeviceCall::allocate_segment, nothing, CALL(allocate_segment(2_MiB))},
    {DeviceCall::free_segment, [](Scene& s) { s.address = *s.device.allocate_segment(2_MiB); },
     CALL(free_segment(s.address, 2_MiB))},
    {DeviceCall::allocate_host, nothing, CALL(allocate_host(2_MiB))},
    {DeviceCall::free_host, host_memory, CALL(free_host(s.host, 2_MiB))},
    {DeviceCall::copy_stream, nothing, CALL(copy_stream(Device::Direction::to_host))},
    {DeviceCall::copy_to_host, host_memory,
     CALL(copy_to_host(s.host, s.page.address, s.page.size, s.stream))},
    {DeviceCall::copy_to_device, host_memory,
     CALL(copy_to_device(s.page.address, s.host, s.page.size, s.stream))},
    {DeviceCall::fill_with_zeros, nothing,
     CALL(fill_with_zeros(s.page.address, s.page.size, s.stream))},
    {DeviceCall::create_event, nothing, CALL(create_event())},
    {DeviceCall::destroy_event, [](Scene& s) { s.event = *s.device.create_event(); },
     CALL(destroy_event(s.event))},
    {DeviceCall::record, nothing, CALL(record(s.event, s.stream))},
    {DeviceCall::wait, nothing, CALL(wait(s.stream, s.event))},
    {DeviceCall::query, nothing, CALL(query(s.event))},
    {DeviceCall::synchronize, nothing, CALL(synchronize(s.event))},
    {DeviceCall::record_context, nothing, CALL(record_context(s.event))},
    {DeviceCall::synchronize_context, nothing, CALL(synchronize_context())},
    {DeviceCall::memory_info, nothing, CALL(memory_info())},
    {DeviceCall::capture_info, nothing, CALL(capture_info(s.stream))},
    {DeviceCall::capture_tips, captured, CALL(capture_tips(s.stream))},
    {DeviceCall::add_capture_dependencies, captured, CALL(add_capture_dependencies(s.stream, {}))},
    {DeviceCall::node_dependencies, captured,
     CALL(node_dependencies(s.device.capture_tips(s.stream)->at(0)))},
    {DeviceCall::retain, captured, CALL(retain(s.stream, nullptr))},
    {DeviceCall::begin_capture, nothing, CALL(begin_capture(s.stream, CaptureMode::global))},
    {DeviceCall::end_capture, captured, CALL(end_capture(s.stream))},
    {DeviceCall::instantiate, [](Scene& s) { s.make_graph(); }, CALL(instantiate(s.graph))},
    {DeviceCall::destroy_graph, [](Scene& s) { s.make_graph(); }, CALL(destroy_graph(s.graph))},
    {DeviceCall::launch_graph, [](Scene& s) { s.make_executable(); },
     CALL(launch_graph(s.executable, s.stream))},
    {DeviceCall::destroy_executable, [](Scene& s) { s.make_executable(); },
     CALL(destroy_executable(s.executable))}};
#undef CALL

// Everything that a call could change.
auto held_by(const SimDevice& device) {
  return std::tuple(device.physical_bytes(), device.live(), device.host_waits());
}

TEST(SimFaults, AnyCallFailsOnceAsTheScriptSaysAndChangesNothingButTheCountAndTheClock) {
  std::set<DeviceCall> tested;
  for (const auto& [call, prepare, make] : kRows) {
    SCOPED_TRACE(name_of(call));
    tested.insert(call);
    Scene scene;
    prepare(scene);
    scene.device.fail(call, 1, ErrorCode::unavailable);
    const auto before = held_by(scene.device);
    const std::uint64_t calls = scene.device.calls(call);
    const Status scripted = make(scene);
    ASSERT_FALSE(scripted.ok());
    EXPECT_EQ(scripted.error().code(), ErrorCode::unavailable);
    EXPECT_THAT(scripted.error().message(), HasSubstr(std::string(name_of(call))));
    EXPECT_EQ(held_by(scene.device), before);
    EXPECT_EQ(scene.device.calls(call), calls + 1);
    const Status after = make(scene);
    EXPECT_TRUE(after.ok()) << after.error().message();
  }
  EXPECT_EQ(tested.size(), static_cast<std::size_t>(kDeviceCalls));
}

TEST(SimFaults, OfOneCallEachComeInTheirTurnCountedFromTheScript) {
  SimDevice device;
  ASSERT_TRUE(device.create(2_MiB).ok());
  device.fail(DeviceCall::create, 1, ErrorCode::out_of_memory);
  device.fail(DeviceCall::create, 3);
  EXPECT_EQ(device.create(2_MiB).error().code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(device.create(2_MiB).ok());
  EXPECT_EQ(device.create(2_MiB).error().code(), ErrorCode::device);
  EXPECT_TRUE(device.create(2_MiB).ok());
}

TEST(DeviceCalls, EachHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDeviceCalls; ++i) names.insert(name_of(static_cast<DeviceCall>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kDeviceCalls));
  EXPECT_FALSE(names.contains("?"));
}

}  // namespace
}  // namespace weir
