// SPDX-License-Identifier: Apache-2.0
// Ranks of one process, each with a simulated device, a heap and a thread, for tests of the
// communication layer. Every test ends with everything closed: heaps are sound, no race was seen,
// ranks asked for the same, and nothing is left.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/comm/expect.h"
#include "weir/comm/communicator.h"
#include "weir/comm/sim_nccl.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir::test {

// Of an operation, where any will do.
inline constexpr Bytes kSize = 4_MiB;
inline constexpr std::uint64_t kCount = kSize.count / 4;
inline constexpr Nanoseconds kSecond{1'000'000'000};

struct Rank {
  int number = 0;
  SimDevice device;
  Stream compute = device.new_stream(), side = device.new_stream();
  std::unique_ptr<DeviceHeap> heap = std::make_unique<DeviceHeap>(device);
  std::unique_ptr<Nccl> nccl;
  std::optional<Communicator> comm;

  CommContext context() { return {*nccl, device, *heap}; }
  void* allocate(Bytes bytes, Stream stream) {
    Result<void*> block = heap->allocate(bytes, stream);
    expect_ok(block);
    return block.ok() ? *block : nullptr;
  }
  void free(void* block) { expect_ok(heap->deallocate(block)); }
  void write(Stream stream, void* block, Bytes bytes, Nanoseconds time = 100_us) {
    expect_ok(device.launch(stream, Writes(block, bytes), time));
  }
  void read(Stream stream, void* block, Bytes bytes, Nanoseconds time = 100_us) {
    expect_ok(device.launch(stream, Reads(block, bytes), time));
  }
  // All-reduces a block of 32-bit floating point in place.
  Result<Work> sum(void* block, Bytes bytes, Stream stream) {
    return comm->all_reduce(block, block, bytes.count / 4, DataType::float32, {},
                            overlapped(stream));
  }
};

class CommRanks : public testing::Test {
 protected:
  explicit CommRanks(int ranks = 2, SimWorldOptions options = {})
      : world_([&] {
          options.ranks = ranks;
          // As long as a busy machine may need; a test of ranks that do not come names its own.
          if (options.host_timeout == SimWorldOptions{}.host_timeout) {
            options.host_timeout = std::chrono::seconds(60);
          }
          return options;
        }()) {
    for (int number = 0; number < ranks; ++number) {
      ranks_.push_back(std::make_unique<Rank>());
      ranks_.back()->number = number;
      ranks_.back()->nccl = world_.rank(number, ranks_.back()->device);
    }
  }

  // A communicator of all, that looks for errors when it is polled. A test whose ranks don't come
  // waits for its host_timeout, and names a short one.
  void create(CommunicatorOptions options = {}) {
    options.watch_every = {};
    if (options.host_timeout == CommunicatorOptions{}.host_timeout) {
      options.host_timeout = Nanoseconds{10'000'000'000};
    }
    const UniqueId id = *ranks_.front()->nccl->unique_id();
    on_all([&](Rank& rank) {
      Result<Communicator> made = Communicator::create(
          rank.context(), id, static_cast<int>(ranks_.size()), rank.number, options);
      expect_ok(made);
      if (made) rank.comm = *std::move(made);
    });
  }
  void prepare() {
    on_all([](Rank& rank) { expect_ok(rank.comm->prepare()); });
  }
  // A graph that adds up a block of its pool.
  static Graph captured_sum(Rank& rank, GraphPool& pool, Bytes size) {
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    void* const block = rank.allocate(size, rank.compute);
    expect_ok(rank.sum(block, size, rank.compute));
    rank.free(block);
    Result<Graph> graph = rank.comm->end_capture(*capture);
    expect_ok(graph);
    return *std::move(graph);
  }
  // Polls every 0.1 s of the device's time, as the watchdog does. How many seconds until an error.
  static std::optional<double> late_after(Rank& rank, double seconds) {
    const Nanoseconds begin = rank.device.now();
    const auto passed = [&] {
      return static_cast<double>((rank.device.now() - begin).count) / 1e9;
    };
    while (passed() < seconds) {
      if (!rank.comm->poll()) return passed();
      rank.device.advance(Nanoseconds{100'000'000});
    }
    return {};
  }
  // In a thread for each rank.
  void on_all(const std::function<void(Rank&)>& work) {
    on_each(ranks_, [&](const auto& rank) { work(*rank); });
  }

  // For tests that ask for a race: with devices that saw none.
  void begin_anew() {
    on_all([](Rank& rank) { rank.comm.reset(); });
    for (auto& rank : ranks_) {
      rank->device.finish();
      rank->heap.reset();
      const int number = rank->number;
      rank = std::make_unique<Rank>();
      rank->number = number;
      rank->nccl = world_.rank(number, rank->device);
    }
  }

  void TearDown() override {
    on_all([](Rank& rank) { rank.comm.reset(); });
    for (const auto& rank : ranks_) {
      EXPECT_THAT(rank->heap->validate(), testing::IsEmpty());
      EXPECT_EQ(rank->heap->statistics().live_blocks.current, 0u);
      EXPECT_EQ(rank->device.race_count(), 0u);
      for (const Race& race : rank->device.races()) ADD_FAILURE() << race.describe();
      rank->device.finish();
      rank->heap.reset();
      rank->nccl.reset();
      // What waited in vain may still be about to give its event back.
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (rank->device.live().events > 0 && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
      EXPECT_EQ(rank->device.live().events, 0u);
      EXPECT_EQ(rank->device.live().graphs, 0u);
      EXPECT_EQ(rank->device.physical_bytes(), 0_B);
    }
    EXPECT_TRUE(may_differ_ || world_.mismatches().empty()) << world_.mismatches().front();
    EXPECT_EQ(world_.counts().communicators, 0u);
    EXPECT_EQ(world_.counts().streams, 0u);
    EXPECT_EQ(world_.counts().segments, 0u);
    EXPECT_EQ(world_.counts().registrations, 0u);
  }

  SimWorld world_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool may_differ_ = false;
};

}  // namespace weir::test
