// SPDX-License-Identifier: Apache-2.0
// Frees and waits under Trust::context (docs/guarantees.md): streams that are gone, what the host
// has waited for, what a request may wait for; and the same rules where uses are told.
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <utility>

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

// One wait for an event of the context covers what was recorded before it.
TEST_F(UntoldFrees, WhoWaitedForTheContextWaitsForNoStreamAnew) {
  void* const x = written(kBlock, s_);
  void* const y = written(kBlock, s_);
  for (void* const block : {x, y}) {
    EXPECT_TRUE(heap_.record_stream(block, m_).ok());
    order(s_, m_);
    read(block, kBlock, m_, kLong);
  }
  free(x);
  free(y);
  heap_.set_limit(reserved());
  write(allocate(kBlock, t_), kBlock, t_);
  write(allocate(kBlock, t_), kBlock, t_);
  EXPECT_EQ(heap_.statistics().stream_waits, 1u);
}

TEST_F(UntoldFrees, ARecordedStreamEndsBeforeTheHostWaits) {
  Stream gone = device_.new_stream();
  gone.may_end = true;
  void* const x = written(kBlock, s_);
  EXPECT_TRUE(heap_.record_stream(x, gone).ok());
  order(s_, gone);
  read(x, kBlock, gone, kLong);
  free(x);
  EXPECT_TRUE(device_.destroy_stream(gone).ok());
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
}

TEST_F(UntoldFrees, ABlockIsUsedAfterTheCaptureThatItWasRecordedIn) {
  void* const x = written(kBlock, t_);
  order(t_, s_);
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] {
    EXPECT_TRUE(heap_.record_stream(x, s_).ok());
    return written(1_MiB, s_);
  });
  read(x, kBlock, s_, kLong);
  free(x);
  write(allocate(kBlock, t_), kBlock, t_);
  free(captured.output);
  drop(captured, *pool);
  close(pool);
}

// Its free waits for the end of the capture, whatever else has frees made that are due.
TEST_F(UntoldFrees, ABlockThatACaptureUsesIsNotFreedBeforeItsEnd) {
  void* const x = written(kBlock, t_);
  host_wait(t_);
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] {
    EXPECT_TRUE(heap_.fence(x, s_).ok());
    read(x, kBlock, s_);
    free(x);
    { const PoolBinding another = warm_up(*open_pool(), m_); }
    EXPECT_TRUE(heap_.trim().ok());
    EXPECT_TRUE(heap_.find(x).has_value()) << "the capture goes on";
    return nullptr;
  });
  free(written(1_MiB, t_));
  EXPECT_FALSE(heap_.find(x).has_value());
  drop(captured, *pool);
  close(pool);
}

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

TEST_F(UntoldFrees, ABlockThatCantBeFencedAtTheEndOfACaptureIsFreedByALaterRequest) {
  void* const x = written(kBlock, t_);
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] {
    EXPECT_TRUE(heap_.record_stream(x, s_).ok());
    free(x);
    void* const y = written(1_MiB, s_);
    device_.fail(DeviceCall::record, 1);
    device_.fail(DeviceCall::record_context, 1);
    return y;
  });
  EXPECT_TRUE(heap_.find(x).has_value());
  free(allocate(1_MiB, t_));
  EXPECT_FALSE(heap_.find(x).has_value());
  free(captured.output);
  drop(captured, *pool);
  close(pool);
}

TEST_F(UntoldFrees, ABlockOfAPoolWhoseRecordedStreamIsGoneComesBackWithTheCapture) {
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  binding.close();
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  Captured captured = capture(*pool, s_, [&] {
    free(x);
    void* const y = written(1_MiB, s_);
    refuse_records(2);
    return y;
  });
  EXPECT_FALSE(heap_.find(x).has_value());
  free(captured.output);
  drop(captured, *pool);
  close(pool);
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

TEST_F(UntoldFreesWithoutEvents, WorkAfterAHostWaitIsWaitedForAnew) {
  void* const kept = written(kBlock, s_);
  void* const x = start();
  free(x);
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  free(start());
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_GE(reserved(), kBlock * 2);
  free(kept);
}

TEST_F(UntoldFreesWithoutEvents, ABlockThatCantBeFencedIsFreedOnceTheHostHasWaited) {
  void* const beside = written(512_KiB, s_);
  void* const x = freed_without_fence(512_KiB);
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_FALSE(heap_.find(x).has_value());
  write(allocate(512_KiB, s_), 512_KiB, s_);
  free(beside);
}

TEST_F(UntoldFreesWithoutEvents, RatherThanRunOutOfMemoryTheHostWaitsForABlockThatCantBeFenced) {
  heap_.set_limit(kBlock);
  void* const x = freed_without_fence(kBlock);
  write(allocate(kBlock, s_), kBlock, s_);
  EXPECT_EQ(device_.host_waits(), 1u);
  EXPECT_TRUE(heap_.find(x).has_value()) << "another block, at the same place";
}

TEST_F(UntoldFreesWithoutEvents, TheMemoryOfABlockThatCantBeFencedGoesWithTheFirstTrim) {
  (void)freed_without_fence(kBlock);
  const Result<Bytes> gone = heap_.trim(0_B, Trim::waits);
  ASSERT_TRUE(gone.ok());
  EXPECT_EQ(*gone, kBlock);
  EXPECT_EQ(reserved(), 0_B);
}

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

// Row 1d, of streams of one pool: what was the stream's own is the graph's since.
class UntoldPoolMemory : public test::ContractPools,
                         public testing::WithParamInterface<ReusePolicy> {
 protected:
  UntoldPoolMemory() : ContractPools({.reuse = GetParam()}) {}
};
INSTANTIATE_TEST_SUITE_P(Policies, UntoldPoolMemory,
                         testing::Values(ReusePolicy::balanced, ReusePolicy::wait,
                                         ReusePolicy::no_wait),
                         [](const auto& policy) {
                           return "P" + std::to_string(static_cast<int>(policy.param));
                         });

TEST_P(UntoldPoolMemory, IsTheGraphsOnceACaptureTookIt) {
  for (const bool limited : {false, true}) {
    for (const bool in_parts : {false, true}) {
      GraphPool* pool = open_pool();
      const Bytes part = in_parts ? kBlock / 2 : kBlock;
      for (int i = 0; i < 3; ++i) {
        PoolBinding binding = warm_up(*pool, t_);
        void* const x = written(part, t_);
        void* const y = in_parts ? written(part, t_) : nullptr;
        free(x);
        free(y);
        binding.close();
        device_.finish();
      }
      Captured captured = capture(*pool, s_, [&] {
        free(written(kBlock, s_));
        return nullptr;
      });
      device_.finish();
      EXPECT_TRUE(heap_.trim().ok());
      if (limited) heap_.set_limit(reserved());
      PoolBinding binding = warm_up(*pool, t_);
      const Result<void*> eager = heap_.allocate(kBlock, t_);
      if (eager) {
        write(*eager, kBlock, t_, kLong);
        launch(captured, m_);
        free(*eager);
      }
      device_.finish();
      binding.close();
      drop(captured, *pool);
      close(pool);
      heap_.set_limit(0_B);
      EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
    }
  }
}

class UntoldRequestsNeverWait : public test::ContractPools {
 protected:
  UntoldRequestsNeverWait() : ContractPools({.reuse = ReusePolicy::no_wait}) {}
};

TEST_F(UntoldRequestsNeverWait, NorForMemoryThatWasFreedLongAgo) {
  void* const x = written(kBlock, s_);
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  order(s_, m_);
  read(x, kBlock, m_, 10'000_ms);
  free(x);
  void* const last = allocate(1_MiB, t_);
  for (int i = 0; i < 200; ++i) {
    free(allocate(1_MiB, t_));
    free(allocate(2_MiB, t_));
    free(allocate(3_MiB, s_));
  }
  write(allocate(kBlock, s_), kBlock, s_);
  write(allocate(kBlock, t_), kBlock, t_);
  EXPECT_EQ(heap_.statistics().stream_waits, 0u);
  free(last);
}

TEST_F(UntoldRequestsNeverWait, NorForGraphsThatAreGone) {
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] { return written(kBlock, s_); });
  launch(captured, m_);
  free(captured.output);
  drop(captured, *pool);
  PoolBinding binding = warm_up(*pool, t_);
  write(allocate(kBlock, t_), kBlock, t_);
  write(allocate(1_KiB, t_), 1_KiB, t_);
  EXPECT_EQ(heap_.statistics().stream_waits, 0u);
  EXPECT_EQ(device_.calls(DeviceCall::wait), 0u);
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

TEST_F(ToldFrees, ARequestForACapturedStreamWaitsForNothing) {
  DeviceHeap heap(device_);
  void* const x = allocate(heap, kBlock, a_);
  write(a_, x, kBlock);
  free(heap, x);
  heap.set_limit(kBlock * 2);
  ASSERT_TRUE(device_.begin_capture(b_, CaptureMode::global).ok());
  const std::uint64_t waits = device_.calls(DeviceCall::wait);
  void* const y = allocate(heap, kBlock, b_);
  EXPECT_NE(y, x);
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits);
  const Result<GraphHandle> graph = device_.end_capture(b_);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  EXPECT_TRUE(device_.destroy_graph(*graph).ok());
  free(heap, y);
  device_.finish();
}

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

TEST_F(ToldFrees, WorkAfterThatWaitIsWaitedForAnew) {
  DeviceHeap heap(device_);
  Stream lasting = device_.new_stream();
  lasting.may_end = true;
  for (int i = 0; i < 2; ++i) {
    void* const x = allocate(heap, kBlock, lasting);
    write(lasting, x, kBlock, 10_ms);
    free(heap, x);
    if (i == 0) {
      EXPECT_TRUE(heap.trim(0_B, Trim::waits).ok());
    }
  }
  EXPECT_TRUE(heap.trim().ok());
  EXPECT_GE(Bytes{heap.statistics().reserved_bytes.current}, kBlock);
  device_.finish();
}

TEST_F(ToldFrees, AStreamThatCantBeAskedKeepsNoOthersPages) {
  DeviceHeap heap(device_);
  void* const x = allocate(heap, kBlock * 2, a_);
  void* const y = allocate(heap, kBlock, b_);
  free(heap, x);
  free(heap, y);
  device_.fail(DeviceCall::record, 1);
  EXPECT_TRUE(heap.trim().ok());
  EXPECT_LE(Bytes{heap.statistics().reserved_bytes.current}, kBlock * 2);
}

// Its idle page can't go to the driver, and so serve the pool, before the capture is over.
TEST_F(ToldFrees, AStreamThatIsCapturedKeepsNoRequestFromWhatElseHelps) {
  DeviceHeap heap(device_, {.limit = kBlock * 2});
  GraphPool pool(heap, {.memory = MemoryKind::plain});
  void* const x = allocate(heap, kBlock, a_);
  void* const y = allocate(heap, kBlock, b_);
  free(heap, y);
  ASSERT_TRUE(device_.begin_capture(b_, CaptureMode::relaxed).ok());
  const Result<void*> refused = pool.allocate(kBlock, a_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory) << refused.error().message();
  heap.on_shortage(Shortage::out_of_memory, [&](Bytes) { free(heap, x); });
  const Result<void*> served = pool.allocate(kBlock, a_);
  ASSERT_TRUE(served.ok()) << served.error().message();
  EXPECT_TRUE(device_.destroy_graph(*device_.end_capture(b_)).ok());
  free(heap, *served);
}

TEST_F(ToldFrees, WhereNoRequestWaitsTheHostDoesRatherThanRunOutOfMemory) {
  DeviceHeap heap(device_, {.limit = kBlock, .reuse = ReusePolicy::no_wait});
  void* const x = allocate(heap, kBlock, a_);
  write(a_, x, kBlock, 10_ms);
  free(heap, x);
  void* const y = allocate(heap, kBlock, b_);
  EXPECT_EQ(heap.statistics().stream_waits, 0u);
  write(b_, y, kBlock);
  free(heap, y);
  device_.finish();
}

}  // namespace
}  // namespace weir
