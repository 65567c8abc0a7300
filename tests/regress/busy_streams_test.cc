// SPDX-License-Identifier: Apache-2.0
// What other threads and other streams once kept from a request that could have been served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "weir/device_heap.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::IsEmpty;

// What the callback frees is cached on a stream that another thread is busy with.
TEST(BusyStream, WhatACallbackFreesOnItServesTheRetry) {
  for (int round = 0; round < 40; ++round) {
    SimDevice device;
    DeviceHeap heap(device, {.limit = 64_MiB});
    const Stream asking = device.new_stream(), busy = device.new_stream();
    void* cache = heap.allocate(40_MiB, busy).value();
    heap.on_shortage(Shortage::out_of_memory, [&](Bytes) {
      EXPECT_TRUE(heap.deallocate(cache).ok());  // null the second time
      cache = nullptr;
    });
    std::atomic<bool> started{false}, stop{false};
    std::thread at_work([&] {
      while (!stop) {
        EXPECT_TRUE(heap.deallocate(heap.allocate(1_KiB, busy).value()).ok());
        started = true;
      }
    });
    while (!started) std::this_thread::yield();
    const Result<void*> block = heap.allocate(48_MiB, asking);
    stop = true;
    at_work.join();
    ASSERT_TRUE(block.ok()) << "round " << round << ": " << block.error().message();
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
}

// Each reserved 256 GiB of addresses, of which a driver has some 60 TiB.
TEST(ManyStreams, EachHasAddressesForItsOwnBlocks) {
  SimDevice device;
  DeviceHeap heap(device);
  constexpr int kStreams = 5000;
  std::vector<void*> blocks;
  for (int i = 0; i < kStreams; ++i) {
    const Result<void*> block = heap.allocate(1_KiB, device.new_stream());
    ASSERT_TRUE(block.ok()) << "stream " << i << ": " << block.error().message();
    blocks.push_back(*block);
  }
  for (void* block : blocks) ASSERT_TRUE(heap.deallocate(block).ok());
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// Host time, the least of several rounds, of a block that two streams take in turn.
double time_of_a_block_handed_over(int streams_that_ended) {
  SimDevice device({.check_races = false});
  DeviceHeap heap(device, {.trust = Trust::context});
  for (int i = 0; i < streams_that_ended; ++i) {
    Stream ending = device.new_stream();
    ending.may_end = true;
    EXPECT_TRUE(heap.deallocate(heap.allocate(1_MiB, ending).value()).ok());
    EXPECT_TRUE(device.destroy_stream(ending).ok());
  }
  const std::array streams{device.new_stream(), device.new_stream()};
  double least = 1e9;
  for (int round = 0; round < 10; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 40; ++i) {
      void* const block = heap.allocate(64_MiB, streams[i % 2]).value();
      EXPECT_TRUE(device.launch(streams[i % 2], Writes(block, 64_MiB), 1_us).ok());
      EXPECT_TRUE(heap.deallocate(block).ok());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count());
  }
  return least;
}

// A server that makes a stream for each request, and destroys it without a word: 4,000 such streams
// once made each block that is handed over take 200 times as long. (The simulated device itself
// takes a little longer for each stream.)
TEST(ManyStreams, ThoseThatEndedWithoutAWordCostTheOthersLittle) {
  const double none = time_of_a_block_handed_over(0);
  const double many = time_of_a_block_handed_over(4000);
  EXPECT_LT(many, 20 * none);
}

// Pages came and went between the counting and the recount.
TEST(Validate, FindsNothingWrongWhileAnotherThreadTrimsAndSetsLimits) {
  SimDevice device;
  DeviceHeap heap(device);
  const Stream stream = device.new_stream();
  std::atomic<bool> stop{false};
  std::thread at_work([&] {
    for (std::uint64_t i = 0; !stop; ++i) {
      heap.set_limit(i % 2 == 0 ? 64_MiB : 0_B);
      EXPECT_TRUE(heap.trim(0_B).ok());
      const Result<void*> block = heap.allocate(8_MiB, stream);
      EXPECT_TRUE(heap.deallocate(block.ok() ? *block : nullptr).ok());
    }
  });
  for (int i = 0; i < 300; ++i) {
    ASSERT_THAT(heap.validate(), IsEmpty());
    std::this_thread::yield();
  }
  stop = true;
  at_work.join();
}

}  // namespace
}  // namespace weir
