// SPDX-License-Identifier: Apache-2.0
// Graph pools and threads: captures beside each other and beside eager work.
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/unit/graph_pool_fixture.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class GraphPoolThreads : public test::GraphPools {
 protected:
  GraphPoolThreads() { sizes_.clear(); }

  // Nothing of the fixture that threads share is written here.
  void* block_on(Stream stream, Bytes bytes) {
    const Result<void*> block = heap_->allocate(bytes, stream);
    EXPECT_TRUE(block.ok()) << (block.ok() ? "" : block.error().message());
    if (!block.ok()) return nullptr;
    EXPECT_TRUE(device_.launch(stream, Writes(*block, bytes), 10_us).ok());
    return *block;
  }
  void drop(void* block) { EXPECT_TRUE(heap_->deallocate(block).ok()); }
};

TEST_F(GraphPoolThreads, OfTwoThatBeginInOnePoolAtOnceOneIsRefused) {
  GraphPool pool(*heap_);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> begun{0}, refused{0}, ready{0};
    const auto attempt = [&](Stream stream) {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      Result<CaptureScope> capture = CaptureScope::begin(pool, stream, CaptureMode::thread_local_);
      ++(capture.ok() ? begun : refused);
      while (begun + refused < 2) std::this_thread::yield();
      if (!capture.ok()) {
        EXPECT_EQ(capture.error().code(), ErrorCode::invalid_argument);
        return;
      }
      drop(block_on(stream, 1_MiB));
      EXPECT_TRUE(capture->end().ok());
    };
    std::thread other(attempt, b_);
    attempt(a_);
    other.join();
    ASSERT_EQ(begun, 1);
    ASSERT_EQ(refused, 1);
  }
}

TEST_F(GraphPoolThreads, PointersIntoPoolsThatAreGoneMayBeAskedAbout) {
  std::array<std::atomic<char*>, 8> seen{};
  std::atomic<bool> stop{false};
  std::thread asks([&] {
    while (!stop.load()) {
      for (const std::atomic<char*>& each : seen) {
        char* const block = each.load();
        if (block == nullptr) continue;
        (void)heap_->find(block + 100);
        (void)heap_->record_stream(block, c_);
      }
    }
  });
  void* last = nullptr;
  for (std::uint64_t i = 0; i < 400; ++i) {
    GraphPool pool(*heap_);
    const Result<void*> block = pool.allocate(Bytes{(1 + i % 3) * 200'000}, i % 2 == 0 ? a_ : b_);
    ASSERT_TRUE(block.ok()) << block.error().message();
    seen[i % seen.size()] = static_cast<char*>(*block);
    drop(last = *block);
  }
  stop = true;
  asks.join();
  EXPECT_FALSE(heap_->find(last).has_value());
  const Status freed = heap_->deallocate(last);
  ASSERT_FALSE(freed.ok());
  EXPECT_EQ(freed.error().code(), ErrorCode::unknown_pointer);
}

TEST_F(GraphPoolThreads, WhatIsSaidOfTheWholeHoldsWhilePoolsAreOpened) {
  std::atomic<bool> stop{false};
  std::thread opener([&] {
    for (int i = 0; i < 300; ++i) {
      GraphPool pool(*heap_);
      std::vector<std::unique_ptr<GraphPool>> more;
      for (int n = 0; n < i % 30; ++n) more.push_back(std::make_unique<GraphPool>(*heap_));
      for (const std::unique_ptr<GraphPool>& each : more) {
        const PoolBinding binding = warm_up(*each, a_);
        drop(block_on(a_, 2_MiB));
      }
    }
    stop = true;
  });
  while (!stop) {
    for (const std::string& broken : heap_->validate()) ADD_FAILURE() << broken;
    const HeapSnapshot all = heap_->snapshot();
    EXPECT_LE(all.blocks.size(), 1u);
  }
  opener.join();
}

// Of two devices that reach each other's memory an event of one breaks captures of both. Each has a
// thread that captures, and one that needs events.
TEST(GraphPoolThreadsOfPeers, CapturesOfBothDevicesStayWholeWhileBothAllocate) {
  SimDevice first;
  const std::unique_ptr<SimDevice> second = first.new_device();
  first.add_peer(*second);
  second->add_peer(first);
  const HeapOptions untold{.trust = Trust::context};
  DeviceHeap heap_of_first(first, untold), heap_of_second(*second, untold);

  const auto allocate_many = [](SimDevice& device, DeviceHeap& heap) {
    const Stream streams[] = {device.new_stream(), device.new_stream()};
    for (std::size_t i = 0; i < 300; ++i) {
      const Stream stream = streams[i % 2];
      const Bytes bytes{(1 + i % 7) * (4_MiB).count};
      const Result<void*> block = heap.allocate(bytes, stream);
      ASSERT_TRUE(block.ok()) << block.error().message();
      EXPECT_TRUE(device.launch(stream, Writes(*block, bytes), 1_ms).ok());
      EXPECT_TRUE(heap.deallocate(*block).ok());
      if (i % 50 == 0) {
        EXPECT_TRUE(heap.trim(0_B, Trim::waits).ok());
      }
    }
  };
  const auto capture_many = [](SimDevice& device, DeviceHeap& heap) {
    const Stream stream = device.new_stream();
    GraphPool pool(heap);
    for (int i = 0; i < 100; ++i) {
      Result<CaptureScope> capture = CaptureScope::begin(pool, stream, CaptureMode::thread_local_);
      ASSERT_TRUE(capture.ok()) << capture.error().message();
      const Result<void*> block = heap.allocate(2_MiB, stream);
      ASSERT_TRUE(block.ok()) << block.error().message();
      EXPECT_TRUE(heap.deallocate(*block).ok());
      const Result<Graph> graph = capture->end();
      ASSERT_TRUE(graph.ok()) << graph.error().message();
    }
  };
  std::vector<std::future<void>> threads;
  using ManyTimes = std::function<void(SimDevice&, DeviceHeap&)>;
  for (const ManyTimes& work : {ManyTimes(allocate_many), ManyTimes(capture_many)}) {
    threads.push_back(std::async(std::launch::async, [&, work] { work(first, heap_of_first); }));
    threads.push_back(std::async(std::launch::async, [&, work] { work(*second, heap_of_second); }));
  }
  for (std::future<void>& thread : threads) thread.get();
  EXPECT_THAT(heap_of_first.validate(), testing::IsEmpty());
  EXPECT_THAT(heap_of_second.validate(), testing::IsEmpty());
  EXPECT_EQ(first.race_count(), 0u);
}

}  // namespace
}  // namespace weir
