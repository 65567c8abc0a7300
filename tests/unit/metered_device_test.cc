// SPDX-License-Identifier: Apache-2.0
#include "weir/metered_device.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

TEST(MeteredDevice, ReportsWhatTheSimulatedDeviceCounts) {
  SimDevice sim;
  MeteredDevice metered(sim);
  const Stream stream = sim.new_stream();
  const test::MappedPage page = test::new_page(metered, 4_MiB);
  const EventHandle event = *metered.create_event();
  ASSERT_TRUE(metered.record(event, stream).ok());
  ASSERT_TRUE(metered.wait(stream, event).ok());
  ASSERT_TRUE(metered.query(event).ok());
  ASSERT_TRUE(metered.synchronize(event).ok());
  ASSERT_TRUE(metered.capture_info(stream).ok());
  ASSERT_TRUE(metered.begin_capture(stream, CaptureMode::global).ok());
  ASSERT_TRUE(sim.launch(stream, 1_us).ok());
  const std::vector<GraphNode> tips = *metered.capture_tips(stream);
  ASSERT_TRUE(metered.node_dependencies(tips.at(0)).ok());
  ASSERT_TRUE(metered.add_capture_dependencies(stream, tips).ok());
  ASSERT_TRUE(metered.retain(stream, nullptr).ok());
  const GraphHandle graph = *metered.end_capture(stream);
  ASSERT_TRUE(metered.record_context(event).ok());
  ASSERT_TRUE(metered.synchronize_context().ok());
  const ExecutableHandle executable = *metered.instantiate(graph);
  ASSERT_TRUE(metered.launch_graph(executable, stream).ok());
  ASSERT_TRUE(metered.destroy_executable(executable).ok());
  ASSERT_TRUE(metered.destroy_graph(graph).ok());
  ASSERT_TRUE(metered.memory_info().ok());
  ASSERT_TRUE(metered.free_segment(metered.allocate_segment(2_MiB).value(), 2_MiB).ok());
  void* const host = *metered.allocate_host(4_MiB);
  const Stream copies = *metered.copy_stream(Device::Direction::to_host);
  ASSERT_TRUE(metered.copy_to_host(host, page.address, page.size, copies).ok());
  ASSERT_TRUE(metered.copy_to_device(page.address, host, page.size, copies).ok());
  ASSERT_TRUE(metered.fill_with_zeros(page.address, page.size, copies).ok());
  sim.finish();
  ASSERT_TRUE(metered.free_host(host, 4_MiB).ok());
  ASSERT_TRUE(metered.destroy_event(event).ok());
  ASSERT_TRUE(metered.unmap(page.address, page.size).ok());
  ASSERT_TRUE(metered.unreserve(page.address, page.size).ok());
  ASSERT_TRUE(metered.release(page.handle).ok());
  Nanoseconds total;
  for (int i = 0; i < kDeviceCalls; ++i) {
    const auto call = static_cast<DeviceCall>(i);
    EXPECT_EQ(metered.calls(call), 1u) << name_of(call);
    EXPECT_EQ(metered.calls(call), sim.calls(call)) << name_of(call);
    EXPECT_EQ(metered.time_in(call), sim.time_in(call)) << name_of(call);
    total += metered.time_in(call);
  }
  EXPECT_EQ(metered.total_time(), total);
  EXPECT_EQ(metered.now(), sim.now());
  EXPECT_EQ(metered.granularity(), sim.granularity());
  EXPECT_EQ(metered.name(), sim.name());
  EXPECT_EQ(*metered.stream(stream.handle), stream);
}

TEST(MeteredDevice, CountsAHostWaitOnlyWhereTheHostHadTo) {
  SimDevice sim;
  MeteredDevice metered(sim);
  const Stream stream = sim.new_stream();
  const EventHandle event = *metered.create_event();
  ASSERT_TRUE(metered.synchronize(event).ok());
  EXPECT_EQ(metered.host_waits(), 0u);
  ASSERT_TRUE(sim.launch(stream, 1_ms).ok());
  ASSERT_TRUE(metered.record(event, stream).ok());
  sim.fail(DeviceCall::synchronize, 1);
  ASSERT_FALSE(metered.synchronize(event).ok());
  EXPECT_EQ(metered.host_waits(), 0u) << "it failed, and so did not wait";
  ASSERT_TRUE(metered.synchronize(event).ok());
  ASSERT_TRUE(metered.synchronize(event).ok());
  EXPECT_EQ(metered.host_waits(), 1u);
  EXPECT_EQ(metered.host_waits(), sim.host_waits());
  EXPECT_EQ(sim.calls(DeviceCall::query), 0u) << "metering asks nothing of the simulated device";
  metered.reset();
  EXPECT_EQ(metered.host_waits(), 0u);
  EXPECT_EQ(metered.calls(DeviceCall::synchronize), 0u);
  EXPECT_EQ(metered.total_time(), 0_ns);
}

// A device that is not a SimDevice, as MeteredDevice sees one.
TEST(MeteredDevice, AsksAnyOtherDeviceWithoutCountingThat) {
  SimDevice sim;
  MeteredDevice inner(sim);
  MeteredDevice metered(static_cast<Device&>(inner));
  const EventHandle event = *metered.create_event();
  ASSERT_TRUE(sim.launch(sim.new_stream(), 1_ms).ok());
  const Stream stream = sim.new_stream();
  ASSERT_TRUE(sim.launch(stream, 1_ms).ok());
  ASSERT_TRUE(metered.record(event, stream).ok());
  ASSERT_TRUE(metered.synchronize(event).ok());
  EXPECT_EQ(metered.host_waits(), 1u);
  EXPECT_EQ(metered.calls(DeviceCall::query), 0u);
  EXPECT_EQ(inner.calls(DeviceCall::query), 1u);
}

}  // namespace
}  // namespace weir
