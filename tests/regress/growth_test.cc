// SPDX-License-Identifier: Apache-2.0
// What an allocator in a process that runs for weeks held for ever, though the memory that it was
// held for had all gone back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::IsEmpty;

// Of the C library's allocator; none under a sanitizer, which has its own.
std::uint64_t host_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

class Growth : public testing::Test {
 protected:
  // Memory of many sizes, used on two streams, comes and goes.
  void use_some(Stream first, Stream second) {
    std::vector<void*> blocks;
    for (int i = 0; i < 400; ++i) {
      if (blocks.size() < 20 || random_() % 2 == 0) {
        blocks.push_back(heap_.allocate(Bytes{300'000 + random_() % 4'000'000}, first).value());
        EXPECT_TRUE(device_.launch(second, 1_us).ok());
        EXPECT_TRUE(heap_.fence(blocks.back(), second).ok());
      } else {
        std::swap(blocks[random_() % blocks.size()], blocks.back());
        EXPECT_TRUE(heap_.deallocate(blocks.back()).ok());
        blocks.pop_back();
      }
    }
    for (void* const block : blocks) EXPECT_TRUE(heap_.deallocate(block).ok());
  }
  void use_in_a_pool(Stream first, Stream second) {
    GraphPool pool(heap_);
    const Result<PoolBinding> binding = pool.warm_up(
        [=](Stream stream) { return stream.id == first.id || stream.id == second.id; });
    ASSERT_TRUE(binding.ok());
    use_some(first, second);
  }
  void give_all_back() {
    device_.finish();
    EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
    EXPECT_EQ(heap_.statistics().reserved_bytes.current, 0u);
    EXPECT_THAT(heap_.validate(), IsEmpty());
  }

  SimDevice device_{{.memory = 8_GiB}};
  DeviceHeap heap_{device_};
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream();
  std::mt19937_64 random_{1};
};

// The places of requests that never came again, up to 2 MiB for each pool and for the device heap.
TEST_F(Growth, HostMemoryIsFlatWhereAllMemoryGoesBackNowAndThen) {
  const auto round = [&] {
    for (int i = 0; i < 5; ++i) {
      use_some(a_, b_);
      use_in_a_pool(b_, a_);
    }
    give_all_back();
  };
  for (int i = 0; i < 8; ++i) round();  // until tables have grown to what this takes
  const std::uint64_t before = host_bytes();
  if (before == 0) GTEST_SKIP() << "a sanitizer's allocator does not say";
  for (int i = 0; i < 10; ++i) round();
  EXPECT_LE(host_bytes(), before + 16 * 1024);
}

// Up to 64 of each stream in each pool.
TEST_F(Growth, NoEventIsLeftWhereAllMemoryWentBack) {
  use_some(a_, b_);
  use_in_a_pool(a_, b_);
  EXPECT_GT(device_.live().events, 0u);
  give_all_back();
  EXPECT_EQ(device_.live().events, 0u);
  use_some(a_, b_);
  use_in_a_pool(a_, b_);
  give_all_back();
  EXPECT_THAT(device_.races(), IsEmpty());
}

// Two regions of up to 256 GiB of each pool that was ever open, beside others.
TEST_F(Growth, AddressesOfPoolsThatAreGoneGoBack) {
  use_some(a_, b_);
  give_all_back();
  const std::uint64_t before = device_.live().reservations;
  {
    std::deque<GraphPool> pools;
    for (int i = 0; i < 8; ++i) {
      GraphPool& pool = pools.emplace_back(heap_);
      const Result<PoolBinding> binding = pool.warm_up(a_);
      ASSERT_TRUE(binding.ok());
      EXPECT_TRUE(heap_.deallocate(heap_.allocate(3_MiB, a_).value()).ok());
    }
    give_all_back();
    EXPECT_GT(device_.live().reservations, before) << "an open pool's stay";
  }
  give_all_back();
  EXPECT_EQ(device_.live().reservations, before);
  use_in_a_pool(a_, b_);  // one of them, with addresses anew
  give_all_back();
  EXPECT_EQ(device_.live().reservations, before);
}

// One of each stream that ever used a pool's record, in whatever pool that was.
TEST_F(Growth, APoolThatServesAgainHasHeapsForItsOwnStreamsAlone) {
  std::vector<Stream> streams;
  for (int i = 0; i < 10; ++i) streams.push_back(device_.new_stream());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    use_in_a_pool(streams[i], streams[(i + 1) % streams.size()]);
    device_.finish();
  }
  EXPECT_EQ(heap_.statistics().heaps.size(), 1u);
}

// An event of each for each later capture, where the stream went between the end of a capture that
// it took part in and the end of that capture's binding.
TEST_F(Growth, StreamsThatAreRetiredBeforeTheirCapturesBindingIsClosedLeaveNothing) {
  GraphPool pool(heap_), other(heap_);
  for (int i = 0; i < 200; ++i) {
    const Stream side = device_.new_stream();
    Result<PoolBinding> binding =
        pool.capture([&](Stream stream) { return stream == a_ || stream == side; }, a_);
    ASSERT_TRUE(binding.ok()) << binding.error().message();
    ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
    const EventHandle event = *device_.create_event();
    EXPECT_TRUE(device_.record(event, a_).ok());
    EXPECT_TRUE(device_.wait(side, event).ok());
    EXPECT_TRUE(heap_.deallocate(heap_.allocate(1_MiB, side).value()).ok());
    EXPECT_TRUE(device_.record(event, side).ok());
    EXPECT_TRUE(device_.wait(a_, event).ok());
    EXPECT_TRUE(device_.destroy_event(event).ok());
    const Result<GraphHandle> graph = device_.end_capture(a_);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    EXPECT_TRUE(heap_.retire(side).ok());
    binding->close(/*keep=*/false);
    EXPECT_TRUE(device_.destroy_graph(*graph).ok());
    EXPECT_TRUE(device_.destroy_stream(side).ok());
  }
  const auto round = [&] {
    {
      const Result<PoolBinding> binding = pool.warm_up(b_);
      ASSERT_TRUE(binding.ok());
      EXPECT_TRUE(heap_.deallocate(heap_.allocate(1_MiB, b_).value()).ok());
    }
    Result<CaptureScope> capture = CaptureScope::begin(other, a_);
    ASSERT_TRUE(capture.ok()) << capture.error().message();
    EXPECT_TRUE(capture->end().ok());
  };
  for (int i = 0; i < 10; ++i) round();
  const std::uint64_t before = host_bytes();
  if (before == 0) GTEST_SKIP() << "a sanitizer's allocator does not say";
  for (int i = 0; i < 20; ++i) round();
  EXPECT_LE(host_bytes(), before + 100 * 1024);
}

}  // namespace
}  // namespace weir
