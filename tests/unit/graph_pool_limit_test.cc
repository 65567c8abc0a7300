// SPDX-License-Identifier: Apache-2.0
// Graph pools of a heap whose limit is lowered: what nobody uses goes back to the driver, wherever
// it is, as soon as the device is done with it.
#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "tests/unit/graph_pool_fixture.h"
#include "weir/event.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class GraphPoolLimit : public test::GraphPools {
 protected:
  std::uint64_t reserved() const { return heap_->statistics().reserved_bytes.current; }
};

// A limit need not be a number of whole pages.
TEST_F(GraphPoolLimit, OneAByteBelowWhatIsHeldIsKeptTo) {
  void* const block = written(64_MiB, a_);
  device_.finish();
  const Bytes held{reserved()};
  heap_->set_limit(held);
  free(block);
  EXPECT_EQ(reserved(), held.count) << "it is the limit";
  heap_->set_limit(held - 1_B);
  EXPECT_LT(reserved(), held.count);
  heap_->set_limit(held);
  void* const again = written(64_MiB, a_);
  device_.finish();
  heap_->set_limit(held - 1_B);
  EXPECT_EQ(reserved(), held.count) << "all of it is in use";
  free(again);
  EXPECT_LT(reserved(), held.count);
}

TEST_F(GraphPoolLimit, WhatIsTakenOfFreeMemoryMakesNoPoolGrow) {
  int short_of_memory = 0;
  heap_->on_shortage(Shortage::out_of_memory, [&](Bytes) { ++short_of_memory; });
  for (const MemoryKind memory : {MemoryKind::pages, MemoryKind::plain}) {
    GraphPool pool(*heap_, {.memory = memory});
    void* const block = *pool.allocate(20_MiB, a_);
    touch(a_, Writes(block, 20_MiB), 1_ms);
    EXPECT_FALSE(pool.take_free(1_MiB, a_).ok());
    free(block);
    const std::uint64_t before = reserved();
    EXPECT_EQ(pool.take_free(30_MiB, a_).error().code(), ErrorCode::out_of_memory);
    EXPECT_EQ(pool.take_free(Bytes{~std::uint64_t{0}}, a_).error().code(),
              ErrorCode::out_of_memory);
    void* const again = *pool.take_free(20_MiB, b_);
    EXPECT_EQ(again, block);
    touch(b_, Writes(again, 20_MiB), 1_ms);
    EXPECT_FALSE(pool.take_free(1_KiB, b_).ok());
    EXPECT_EQ(reserved(), before);
    free(again);
    device_.finish();
  }
  EXPECT_EQ(short_of_memory, 0);
  EXPECT_EQ(heap_->statistics().out_of_memory, 0u);
}

TEST_F(GraphPoolLimit, ATrimGivesWhatOnePartHasWhereTheOtherCantBeAskedAbout) {
  GraphPool plain(*heap_, {.limit = {}, .memory = MemoryKind::plain, .tag = {}});
  {
    const PoolBinding binding = warm_up(plain, a_);
    free(written(64_MiB, a_));
  }
  free(written(2_MiB, b_));
  device_.finish();
  device_.fail(DeviceCall::query, 1);  // of the device heap's own
  EXPECT_EQ(heap_->trim(0_B).value(), 64_MiB);
  device_.fail(DeviceCall::query, 1);
  EXPECT_FALSE(heap_->trim(0_B).ok()) << "nothing went, and why is said";
  EXPECT_EQ(heap_->trim(0_B).value(), 2_MiB);
}

// What the other pool has free can't be asked about now; it is no reason to refuse the request.
TEST_F(GraphPoolLimit, ARequestWithoutRoomSaysSoBesideMemoryOfAStreamThatIsCaptured) {
  GraphPool other(*heap_), pool(*heap_, {.limit = 4_MiB, .memory = std::nullopt, .tag = {}});
  void* block = nullptr;
  {
    const PoolBinding binding = warm_up(other, a_);
    block = written(8_MiB, a_);
  }
  CaptureScope capture = begin(pool, a_);
  void* const first = written(4_MiB, a_);
  free(block);
  expect_error(heap_->allocate(4_MiB, a_), ErrorCode::out_of_memory, "graph pool 2");
  free(first);
  Graph graph = end(capture);
}

// A capture that begins may wait for the device, under the pool's lock; for work, perhaps, that the
// thread that frees has still to queue.
TEST(GraphPoolLimits, AFreeOverALowerOneDoesNotWaitForAPoolWhoseCaptureBegins) {
  SimDevice sim;
  test::CallsAsTheHostWaits device(sim);
  const Stream a = sim.new_stream(), b = sim.new_stream();
  DeviceHeap heap(device);
  void* const held = *heap.allocate(64_MiB, b);
  void* const other = *heap.allocate(1_KiB, b);
  GraphPool pool(heap);
  {
    const Result<PoolBinding> binding = pool.warm_up(a);
    void* const block = *heap.allocate(1_MiB, a);
    ASSERT_TRUE(sim.launch(a, Writes(block, 1_MiB), 100_us).ok());
    ASSERT_TRUE(heap.deallocate(block).ok());
  }
  heap.set_limit(16_MiB);
  std::promise<void> waits, freed;
  bool was_freed = false;
  device.call = [&] {
    waits.set_value();
    was_freed = freed.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  };
  std::future<bool> captured = std::async(std::launch::async, [&] {
    Result<CaptureScope> capture = CaptureScope::begin(pool, a);
    return capture.ok() && capture->end().ok();
  });
  ASSERT_EQ(waits.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(heap.deallocate(other).ok());
  freed.set_value();
  EXPECT_TRUE(captured.get());
  EXPECT_TRUE(was_freed) << "while the capture waited for the device";
  EXPECT_TRUE(heap.deallocate(held).ok());
  EXPECT_LE(heap.statistics().reserved_bytes.current, (16_MiB).count);
  EXPECT_THAT(heap.validate(), testing::IsEmpty());
}

}  // namespace
}  // namespace weir
