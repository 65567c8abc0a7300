// SPDX-License-Identifier: Apache-2.0
// Frees and waits under Trust::context (docs/guarantees.md): streams that are gone, what the host
// has waited for, what a request may wait for; and the same rules where uses are told.
#include <gmock/gmock.h>

#include <cstdint>

#include "tests/unit/contract_pools.h"
#include "tests/unit/core_heap_fixture.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class UntoldFrees : public test::ContractPools {
 protected:
  using ContractPools::ContractPools;

  // The driver refuses to record for a while, as of streams that are no more.
  void refuse_records(int times) {
    for (int i = 1; i <= times; ++i)
      device_.fail(DeviceCall::record, static_cast<std::uint64_t>(i));
  }
};

// The driver knows no such stream any more, so it can't be asked whether that is captured.
TEST_F(UntoldFrees, ABlockOfARetiredStreamIsFreedWhileAnotherStreamIsCaptured) {
  const Stream gone = device_.new_stream();
  void* const x = written(kBlock, gone);
  EXPECT_TRUE(heap_.retire(gone).ok());
  EXPECT_TRUE(device_.destroy_stream(gone).ok());
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] {
    free(x);
    EXPECT_FALSE(heap_.find(x).has_value());
    return nullptr;
  });
  drop(captured, *pool);
  close(pool);
}

// No event can be had, neither of the stream nor of the context: for a while.
TEST_F(UntoldFrees, ABlockThatCantBeFencedIsFreedByALaterRequest) {
  void* const x = written(kBlock, s_);
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  device_.fail(DeviceCall::record, 1);
  device_.fail(DeviceCall::record_context, 1);
  free(x);
  EXPECT_TRUE(heap_.find(x).has_value());
  free(allocate(1_MiB, t_));
  EXPECT_FALSE(heap_.find(x).has_value());
}

TEST_F(UntoldFrees, AStreamOfUnknownLifeMayEnd) {
  const Result<Stream> made = heap_.stream(s_.handle);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->may_end);
}

class UntoldFreesWithoutEvents : public UntoldFrees {
 protected:
  UntoldFreesWithoutEvents() : UntoldFrees({.context_events = false}) {}

  // s_'s, used by a stream that is gone.
  void* freed_without_fence(Bytes size) {
    void* const x = written(size, s_);
    EXPECT_TRUE(heap_.record_stream(x, m_).ok());
    order(s_, m_);
    read(x, size, m_, kLong);
    refuse_records(100);
    free(x);
    EXPECT_TRUE(heap_.find(x).has_value());
    return x;
  }
};

TEST_F(UntoldFreesWithoutEvents, TheMemoryOfABlockThatCantBeFencedServesARequestOfAnotherStream) {
  heap_.set_limit(kBlock + kBlock / 2);
  (void)freed_without_fence(kBlock);
  write(allocate(kBlock - 12_MiB, t_), kBlock - 12_MiB, t_);
}

// On a GPU, to wait for all work takes a little memory, which there may not be.
class FullDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status synchronize_context() override {
    if (is_full) return Error(ErrorCode::out_of_memory, "no 256 bytes are left");
    return ForwardingDevice::synchronize_context();
  }
  bool is_full = false;
};

TEST(UntoldFreesOnAFullDevice, WaitForTheNextTimeAndNothingIsLost) {
  constexpr Bytes kBlock = 64_MiB;
  SimDevice sim;
  FullDevice device(sim);
  const Stream s = sim.new_stream(), m = sim.new_stream();
  DeviceHeap heap(device, {.limit = kBlock, .trust = Trust::context, .context_events = false});
  void* const x = *heap.allocate(kBlock, s);
  ASSERT_TRUE(heap.record_stream(x, m).ok());
  ASSERT_TRUE(sim.launch(m, Reads(x, kBlock), 50_ms).ok());
  for (std::uint64_t i = 1; i <= 10; ++i) sim.fail(DeviceCall::record, i);
  ASSERT_TRUE(heap.deallocate(x).ok());
  device.is_full = true;
  const Result<void*> refused = heap.allocate(kBlock, s);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("of a limit of 64.00 MiB"));
  const Result<Bytes> trimmed = heap.trim(0_B, Trim::waits);
  EXPECT_TRUE(trimmed.ok()) << trimmed.error().message();
  EXPECT_TRUE(heap.find(x).has_value());
  device.is_full = false;
  const Result<void*> again = heap.allocate(kBlock, s);
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_TRUE(sim.launch(s, Writes(*again, kBlock), 1_us).ok());
  EXPECT_TRUE(heap.deallocate(*again).ok());
  EXPECT_EQ(sim.race_count(), 0u);
}

// Without events of the context a request waits for other streams' memory on the host.
TEST(UntoldFreesOnAFullDevice, ARequestThatCantWaitForAnIdlePageIsOutOfMemory) {
  SimDevice sim;
  FullDevice device(sim);
  const Stream s = sim.new_stream(), t = sim.new_stream();
  DeviceHeap heap(device, {.limit = 64_MiB, .trust = Trust::context, .context_events = false});
  void* const x = *heap.allocate(64_MiB, s);
  ASSERT_TRUE(sim.launch(s, Writes(x, 64_MiB), 50_ms).ok());
  ASSERT_TRUE(heap.deallocate(x).ok());
  device.is_full = true;
  const Result<void*> refused = heap.allocate(32_MiB, t);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("of a limit of 64.00 MiB"));
  device.is_full = false;
  const Result<void*> served = heap.allocate(32_MiB, t);
  ASSERT_TRUE(served.ok()) << served.error().message();
  EXPECT_TRUE(sim.launch(t, Writes(*served, 32_MiB), 1_us).ok());
  EXPECT_TRUE(heap.deallocate(*served).ok());
  EXPECT_EQ(sim.race_count(), 0u);
}

TEST_F(UntoldFrees, WaitsForSmallBlocksAreCounted) {
  void* const beside = written(1_KiB, s_);
  void* const x = written(1_KiB, s_);
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  order(s_, m_);
  read(x, 1_KiB, m_, kLong);
  free(x);
  EXPECT_EQ(written(1_KiB, s_), x);
  EXPECT_EQ(heap_.statistics().stream_waits, 1u);
  free(beside);
}

// Uses are told.
class ToldFrees : public test::CoreHeap {
 protected:
  static constexpr Bytes kBlock = 64_MiB;
  void TearDown() override {
    for (const Race& race : device_.races()) ADD_FAILURE() << race.describe();
  }
};

TEST_F(ToldFrees, ASmallRequestForACapturedStreamWaitsForNothing) {
  for (const bool cached : {true, false}) {
    DeviceHeap heap(device_);
    void* const beside = allocate(heap, 1_KiB, b_);
    void* const x = allocate(heap, 1_KiB, b_);
    ASSERT_TRUE(heap.fence(x, a_).ok());
    free(heap, x);
    if (!cached) {
      EXPECT_TRUE(heap.trim().ok());
    }
    ASSERT_TRUE(device_.begin_capture(b_, CaptureMode::global).ok());
    const std::uint64_t waits = device_.calls(DeviceCall::wait);
    void* const y = allocate(heap, 1_KiB, b_);
    EXPECT_NE(y, nullptr);
    EXPECT_EQ(device_.calls(DeviceCall::wait), waits);
    const Result<GraphHandle> graph = device_.end_capture(b_);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    EXPECT_TRUE(device_.destroy_graph(*graph).ok());
    free(heap, y);
    free(heap, beside);
  }
}

TEST_F(ToldFrees, AStreamThatMayEndIsWaitedForWithAllOthers) {
  DeviceHeap heap(device_);
  Stream gone = device_.new_stream();
  gone.may_end = true;
  void* const x = allocate(heap, kBlock, gone);
  write(gone, x, kBlock, 10_ms);
  free(heap, x);
  EXPECT_TRUE(device_.destroy_stream(gone).ok());
  EXPECT_TRUE(heap.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(heap.statistics().reserved_bytes.current, 0u);
}

}  // namespace
}  // namespace weir
