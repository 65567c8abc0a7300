// SPDX-License-Identifier: Apache-2.0
// A heap as PyTorch's backend has it, on a simulated device: nobody tells which streams use a
// block, and streams that read are met by the heap never or later. A refusal fails the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir::test {

class Contract : public testing::Test {
 protected:
  static constexpr Bytes kBlock = 64_MiB;
  static constexpr Nanoseconds kLong = 50_ms;

  Contract() = default;
  explicit Contract(HeapOptions options) : heap_(device_, untold(options)) {}
  ~Contract() override {
    for (const Race& race : device_.races()) ADD_FAILURE() << race.describe();
    EXPECT_EQ(device_.uses_of_destroyed_streams(), 0u);
    for (const std::string& broken : heap_.validate()) ADD_FAILURE() << broken;
  }

  static HeapOptions untold(HeapOptions options = {}) {
    options.trust = Trust::context;
    return options;
  }

  void* allocate(Bytes bytes, Stream stream) {
    Result<void*> block = heap_.allocate(bytes, stream);
    EXPECT_TRUE(block.ok()) << (block.ok() ? "" : block.error().message());
    return block.ok() ? *block : nullptr;
  }
  void free(void* block) {
    const Status freed = heap_.deallocate(block);
    EXPECT_TRUE(freed.ok()) << (freed.ok() ? "" : freed.error().message());
  }
  void* written(Bytes bytes, Stream stream, Nanoseconds duration = 10_us) {
    void* const block = allocate(bytes, stream);
    write(block, bytes, stream, duration);
    return block;
  }
  // Illegal on a device, where the memory is not mapped.
  void write(void* block, Bytes bytes, Stream stream, Nanoseconds duration = 10_us) {
    const Status done = device_.launch(stream, Writes(block, bytes), duration);
    EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
  }
  void read(void* block, Bytes bytes, Stream stream, Nanoseconds duration = 10_us) {
    const Status done = device_.launch(stream, Reads(block, bytes), duration);
    EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
  }
  // By events of the program's own.
  void order(Stream earlier, Stream later) {
    const EventHandle event = *device_.create_event();
    EXPECT_TRUE(device_.record(event, earlier).ok());
    EXPECT_TRUE(device_.wait(later, event).ok());
    EXPECT_TRUE(device_.destroy_event(event).ok());
  }
  void host_wait(Stream stream) {
    const EventHandle event = *device_.create_event();
    EXPECT_TRUE(device_.record(event, stream).ok());
    EXPECT_TRUE(device_.synchronize(event).ok());
    EXPECT_TRUE(device_.destroy_event(event).ok());
  }
  // A block of s_'s that m_ reads for a long time from now on: m_ is behind what wrote it, the host
  // too, and nobody was told.
  void* start() {
    void* const x = written(kBlock, s_);
    order(s_, m_);
    host_wait(s_);
    read(x, kBlock, m_, kLong);
    return x;
  }
  Bytes reserved() { return Bytes{heap_.statistics().reserved_bytes.current}; }

  SimDevice device_;
  // A heap meets a stream when something is allocated for it: m_ may never be met.
  const Stream s_ = device_.new_stream(), t_ = device_.new_stream(), m_ = device_.new_stream();
  DeviceHeap heap_{device_, untold()};
};

}  // namespace weir::test
