// SPDX-License-Identifier: Apache-2.0
// A simulated device with three streams, for tests of a whole device heap. A refusal fails the
// test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "weir/device_heap.h"
#include "weir/sim_device.h"

namespace weir::test {

class CoreHeap : public testing::Test {
 protected:
  CoreHeap() = default;
  explicit CoreHeap(SimOptions options) : device_(options) {}

  static void* allocate(DeviceHeap& heap, Bytes bytes, Stream stream) {
    Result<void*> block = heap.allocate(bytes, stream);
    EXPECT_TRUE(block.ok()) << (block.ok() ? "" : block.error().message());
    return block.ok() ? *block : nullptr;
  }
  static void free(DeviceHeap& heap, void* block) {
    const Status status = heap.deallocate(block);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
  }
  void write(Stream stream, void* block, Bytes bytes, Nanoseconds duration = 100_us) {
    ASSERT_TRUE(device_.launch(stream, Writes(block, bytes), duration).ok());
  }
  // As a program that hands the block to another stream does.
  void write_after(Stream stream, Stream earlier, void* block, Bytes bytes, Nanoseconds duration) {
    const Result<EventHandle> event = device_.create_event();
    ASSERT_TRUE(event.ok());
    ASSERT_TRUE(device_.record(*event, earlier).ok());
    ASSERT_TRUE(device_.wait(stream, *event).ok());
    ASSERT_TRUE(device_.destroy_event(*event).ok());
    write(stream, block, bytes, duration);
  }

  std::vector<std::uint64_t> all_calls() const {
    std::vector<std::uint64_t> calls;
    for (int i = 0; i < kDeviceCalls; ++i) {
      calls.push_back(device_.calls(static_cast<DeviceCall>(i)));
    }
    return calls;
  }
  // Calls that move memory.
  std::vector<std::uint64_t> memory_calls() const {
    std::vector<std::uint64_t> calls;
    for (const DeviceCall call :
         {DeviceCall::reserve, DeviceCall::unreserve, DeviceCall::create, DeviceCall::map,
          DeviceCall::set_access, DeviceCall::unmap, DeviceCall::release}) {
      calls.push_back(device_.calls(call));
    }
    return calls;
  }

  SimDevice device_;
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream(), c_ = device_.new_stream();
};

}  // namespace weir::test
