// SPDX-License-Identifier: Apache-2.0
// The contract of fence() in its plainest form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weir/device_heap.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::IsEmpty;

TEST(StreamHeap, FreedBlockServesAnotherStreamOnlyAfterItsFence) {
  SimDevice device;
  DeviceHeap heap(device, {.limit = {}, .reuse = ReusePolicy::wait});
  const Stream compute = device.new_stream(), comm = device.new_stream();

  void* const gradient = heap.allocate(64_MiB, compute).value();
  ASSERT_TRUE(device.launch(comm, Writes(gradient, 64_MiB), 5_ms).ok());
  ASSERT_TRUE(heap.fence(gradient, comm).ok());
  ASSERT_TRUE(heap.deallocate(gradient).ok());

  void* const next = heap.allocate(64_MiB, compute).value();
  ASSERT_TRUE(device.launch(compute, Writes(next, 64_MiB), 1_ms).ok());

  EXPECT_EQ(next, gradient);               // the memory came back at once,
  EXPECT_EQ(device.host_waits(), 0u);      // the host never stalled,
  EXPECT_THAT(device.races(), IsEmpty());  // and the second write is ordered after the first
}

}  // namespace
}  // namespace weir
