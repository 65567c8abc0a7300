// SPDX-License-Identifier: Apache-2.0
// A simulated device, a heap and three streams, for tests of graph pools. Every test ends with
// everything destroyed: the heap is sound, no race was seen, and nothing is left on the device.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/interposed_device.h"
#include "weir/sim_device.h"

namespace weir::test {

// Calls back, once, when the host waits for its work.
class CallsAsTheHostWaits final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status synchronize(EventHandle event) override {
    if (call) std::exchange(call, {})();
    return ForwardingDevice::synchronize(event);
  }
  std::function<void()> call;
};

class GraphPools : public testing::Test {
 protected:
  explicit GraphPools(HeapOptions options = {})
      : heap_(std::make_unique<DeviceHeap>(device_, options)) {}

  void TearDown() override {
    EXPECT_THAT(heap_->validate(), testing::IsEmpty());
    EXPECT_EQ(heap_->statistics().live_blocks.current, 0u) << "the test's own blocks";
    expect_no_race();
    device_.finish();
    heap_.reset();
    expect_no_race();
    EXPECT_EQ(device_.live().graphs, 0u);
    EXPECT_EQ(device_.live().executables, 0u);
    EXPECT_EQ(device_.live().events, 0u);
    EXPECT_EQ(device_.live().mappings, 0u);
    EXPECT_EQ(device_.live().handles, 0u);
    EXPECT_EQ(device_.live().reservations, 0u);
    EXPECT_EQ(device_.physical_bytes(), 0_B);
  }

  void* allocate(Bytes bytes, Stream stream) {
    Result<void*> block = heap_->allocate(bytes, stream);
    EXPECT_TRUE(block.ok()) << (block.ok() ? "" : block.error().message());
    if (!block.ok()) return nullptr;
    sizes_[*block] = bytes;
    return *block;
  }
  void free(void* block) {
    const Status status = heap_->deallocate(block);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
  }
  void write(Stream stream, void* block, Nanoseconds duration = 100_us) {
    touch(stream, Writes(block, sizes_.at(block)), duration);
  }
  void read(Stream stream, void* block, Nanoseconds duration = 100_us) {
    touch(stream, Reads(block, sizes_.at(block)), duration);
  }
  void touch(Stream stream, const Access& access, Nanoseconds duration) {
    const Status launched = device_.launch(stream, access, duration);
    EXPECT_TRUE(launched.ok()) << (launched.ok() ? "" : launched.error().message());
  }
  void* written(Bytes bytes, Stream stream, Nanoseconds duration = 100_us) {
    void* const block = allocate(bytes, stream);
    if (block != nullptr) write(stream, block, duration);
    return block;
  }
  // `later` waits for the work queued so far on `earlier`: a fork or a join, in a capture.
  void order(Stream earlier, Stream later) {
    const EventHandle event = *device_.create_event();
    EXPECT_TRUE(device_.record(event, earlier).ok());
    EXPECT_TRUE(device_.wait(later, event).ok());
    EXPECT_TRUE(device_.destroy_event(event).ok());
  }

  CaptureScope begin(GraphPool& pool, Stream stream) {
    Result<CaptureScope> capture = CaptureScope::begin(pool, stream);
    EXPECT_TRUE(capture.ok()) << (capture.ok() ? "" : capture.error().message());
    return *std::move(capture);
  }
  static Graph end(CaptureScope& capture) {
    Result<Graph> graph = capture.end();
    EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message());
    return graph.ok() ? *std::move(graph) : Graph();
  }
  static PoolBinding warm_up(GraphPool& pool, Stream stream) {
    Result<PoolBinding> binding = pool.warm_up(stream);
    EXPECT_TRUE(binding.ok()) << (binding.ok() ? "" : binding.error().message());
    return *std::move(binding);
  }
  static void launch(Graph& graph, Stream stream) {
    const Status launched = graph.launch(stream);
    EXPECT_TRUE(launched.ok()) << (launched.ok() ? "" : launched.error().message());
  }

  // A small graph with a block of the pool's, to see that captures (still) work.
  Graph small_graph(GraphPool& pool, Stream stream, Bytes bytes = 1_MiB) {
    CaptureScope capture = begin(pool, stream);
    void* const block = written(bytes, stream);
    if (block != nullptr) free(block);
    return end(capture);
  }

  std::uint64_t wrong_reads(const Graph& graph, std::uint64_t seeds = 200) {
    std::uint64_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      wrong += device_.replay_in_random_order(graph.graph(), seed);
    }
    return wrong;
  }
  void expect_no_race() {
    if (may_race_) return;
    EXPECT_EQ(device_.race_count(), 0u);
    for (const Race& race : device_.races()) ADD_FAILURE() << race.describe();
  }
  template <class Outcome>
  static void expect_error(const Outcome& outcome, ErrorCode code, const char* says) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code(), code);
    EXPECT_THAT(outcome.error().message(), testing::HasSubstr(says));
  }

  SimDevice device_;
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream(), c_ = device_.new_stream();
  std::unique_ptr<DeviceHeap> heap_;
  bool may_race_ = false;
  std::unordered_map<void*, Bytes> sizes_;  // as asked for
};

}  // namespace weir::test
