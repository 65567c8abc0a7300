// SPDX-License-Identifier: Apache-2.0
// What PyTorch's own allocator promises without saying so, kept under Trust::context
// (docs/guarantees.md): the rows that the core holds.

#include "tests/unit/contract_fixture.h"
#include "tests/unit/contract_pools.h"

namespace weir {
namespace {

class Untold : public test::ContractPools {
 protected:
  using ContractPools::ContractPools;
};

// Rows 1a and 1h: graphs dropped while they run, their outputs read by nobody knows whom.

TEST_F(Untold, OutputsOfAGraphAreReadWhileBothAreDropped) {
  for (const bool output_first : {true, false}) {
    GraphPool* pool = open_pool();
    Captured captured = capture(*pool, s_, [&] { return written(kBlock, s_); });
    launch(captured, m_);
    read(captured.output, kBlock, m_, kLong);
    if (output_first) free(captured.output);
    drop(captured, *pool);
    if (!output_first) free(captured.output);
    close(pool);
    // Others go on allocating.
    void* const first = written(kBlock, m_);
    void* const second = written(kBlock, t_);
    free(first);
    free(second);
    EXPECT_TRUE(heap_.trim().ok());
    device_.finish();
  }
}

// Row 1b: a pool that no graph was ever captured into.
TEST_F(Untold, MemoryOfAPoolIsReadWhileItGoes) {
  GraphPool* pool = open_pool();
  void* x = nullptr;
  {
    PoolBinding binding = warm_up(*pool, s_);
    x = start();
  }
  free(x);
  close(pool);
  write(allocate(kBlock, t_), kBlock, t_);
}

// Row 1c
TEST_F(Untold, MemoryIsReadWhileTheCacheIsEmptied) {
  void* const x = start();
  free(x);
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_GE(reserved(), kBlock) << "the read runs still, and the host did not wait";
  EXPECT_EQ(device_.host_waits(), 1u) << "start()'s";
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
}

TEST_F(Untold, MemoryIsReadWhileTheLimitIsLowered) {
  void* const x = start();
  free(x);
  heap_.set_limit(2_MiB);
  EXPECT_GE(reserved(), kBlock);
  device_.finish();
  free(allocate(1_MiB, s_));
}

// Row 1d: eager memory that a capture would take.
TEST_F(Untold, MemoryIsReadWhileACaptureBegins) {
  void* const x = start();
  free(x);
  GraphPool* pool = open_pool();
  const std::uint64_t waits = device_.host_waits();
  Captured captured = capture(*pool, t_, [&] { return written(kBlock, t_); });
  EXPECT_EQ(device_.host_waits(), waits) << "row 14: nothing that begins a capture waits";
  launch(captured, t_);
  free(captured.output);
  drop(captured, *pool);
  close(pool);
}

TEST_F(Untold, ACaptureTakesIdleMemoryWhoseWorkIsOver) {
  void* const x = start();
  free(x);
  device_.finish();
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, t_, [&] { return written(kBlock, t_); });
  EXPECT_LE(reserved(), kBlock);
  free(captured.output);
  drop(captured, *pool);
  close(pool);
}

// Row 1e: the uses are ordered before the stream's own next use only after the free.
TEST_F(Untold, MemoryIsReadWhileAnotherStreamWantsIt) {
  void* const x = start();
  free(x);
  void* const y = allocate(kBlock, t_);
  write(y, kBlock, t_);
  order(m_, s_);
  write(allocate(kBlock, s_), kBlock, s_);
}

TEST_F(Untold, AnotherStreamTakesTheMemoryBehindAllWork) {
  heap_.set_limit(kBlock);  // there is no other
  void* const x = start();
  free(x);
  void* const y = allocate(kBlock, t_);
  EXPECT_EQ(y == nullptr, false);
  write(y, kBlock, t_);
  EXPECT_EQ(device_.calls(DeviceCall::record_context), 1u);
  EXPECT_EQ(device_.host_waits(), 1u) << "start()'s";
}

// "At most one event serves all memory that turned idle before it."
TEST_F(Untold, OneEventServesAllMemoryThatWasFreedBefore) {
  heap_.set_limit(kBlock * 4);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(written(kBlock, s_));
  for (void* const block : blocks) free(block);
  for (int i = 0; i < 4; ++i) write(allocate(kBlock, t_), kBlock, t_);
  EXPECT_EQ(device_.calls(DeviceCall::record_context), 1u);
}

TEST_F(Untold, AStreamsOwnMemoryIsTakenAtOnce) {
  void* const x = written(kBlock, s_, kLong);
  free(x);
  EXPECT_EQ(allocate(kBlock, s_), x);
  EXPECT_EQ(device_.calls(DeviceCall::record_context), 0u);
  EXPECT_EQ(device_.calls(DeviceCall::wait), 0u);
}

// Row 4: a stream that is destroyed while its memory is here.
TEST_F(Untold, AStreamIsDestroyedWithoutAWord) {
  Stream gone = device_.new_stream();
  gone.may_end = true;
  void* const x = written(kBlock, gone);
  void* const y = written(1_KiB, gone);
  host_wait(gone);
  free(x);
  EXPECT_TRUE(device_.destroy_stream(gone).ok());
  free(y);
  heap_.set_limit(kBlock + 4_MiB);
  write(allocate(kBlock, t_), kBlock, t_);
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, t_, [&] { return written(1_MiB, t_); });
  free(captured.output);
  drop(captured, *pool);
  close(pool);
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
}

// Row 3b: a stream that uses the block is captured when it is freed.
TEST_F(Untold, ABlockIsFreedWhileAStreamThatUsesItIsCaptured) {
  void* const x = written(kBlock, t_);
  order(t_, s_);
  read(x, kBlock, s_, kLong);
  EXPECT_TRUE(heap_.record_stream(x, s_).ok());
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] {
    void* const y = written(kBlock, s_);
    free(x);
    EXPECT_FALSE(heap_.deallocate(x).ok()) << "a second time";
    return y;
  });
  EXPECT_FALSE(heap_.find(x).has_value()) << "it went back with the end of the capture";
  write(allocate(kBlock, t_), kBlock, t_);
  free(captured.output);
  drop(captured, *pool);
  close(pool);
}

// Row 5: captures that others begin.
TEST_F(Untold, ACaptureThatNobodyAnnouncedStaysWhole) {
  free(written(kBlock, s_, kLong));
  begin_unannounced(s_);
  void* const y = written(kBlock, t_);
  free(y);
  EXPECT_TRUE(heap_.trim().ok());
  end_and_destroy(s_);
}

TEST_F(Untold, AfterOneNoEventsOfTheContextAreRecorded) {
  begin_unannounced(s_);
  free(written(kBlock, t_));
  free(written(1_KiB, s_));  // s_ is met
  free(written(kBlock, m_));
  end_and_destroy(s_);
  device_.finish();
  const std::uint64_t before = device_.calls(DeviceCall::record_context);
  free(written(kBlock * 2, t_));
  free(written(kBlock * 3, m_));
  EXPECT_EQ(device_.calls(DeviceCall::record_context), before);
}

class UntoldWithoutEvents : public test::ContractPools {
 protected:
  UntoldWithoutEvents() : ContractPools({.context_events = false}) {}
};

TEST_F(UntoldWithoutEvents, MemoryChangesItsStreamOnlyWhereTheHostWaits) {
  void* const x = start();
  free(x);
  write(allocate(kBlock, t_), kBlock, t_);
  EXPECT_GE(reserved(), kBlock * 2);
  EXPECT_EQ(device_.host_waits(), 1u) << "start()'s";
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), kBlock);
  EXPECT_EQ(device_.calls(DeviceCall::record_context), 0u);
}

TEST_F(UntoldWithoutEvents, RatherThanBeOutOfMemoryTheHostWaits) {
  heap_.set_limit(kBlock);
  void* const x = start();
  free(x);
  write(allocate(kBlock, t_), kBlock, t_);
  EXPECT_EQ(device_.host_waits(), 2u);
}

// Row 2.
class UntoldNeverWaits : public test::ContractPools {
 protected:
  UntoldNeverWaits() : ContractPools({.reuse = ReusePolicy::no_wait}) {}
};

TEST_F(UntoldNeverWaits, NoRequestMakesAStreamWait) {
  for (const Bytes size : {1_KiB, 128_KiB, 1_MiB, kBlock}) {
    void* const x = written(size, s_);
    EXPECT_TRUE(heap_.record_stream(x, m_).ok());
    order(s_, m_);
    read(x, size, m_, kLong);
    free(x);
    write(allocate(size, s_), size, s_);
    write(allocate(size, t_), size, t_);
  }
  EXPECT_EQ(heap_.statistics().stream_waits, 0u);
  EXPECT_EQ(device_.host_waits(), 0u);
}

TEST_F(UntoldNeverWaits, MemoryWhoseUseIsSeenToBeOverIsTaken) {
  void* const x = start();
  free(x);
  device_.finish();
  const Bytes before = reserved();
  write(allocate(kBlock, t_), kBlock, t_);
  EXPECT_EQ(reserved(), before);
  EXPECT_EQ(heap_.statistics().stream_waits, 0u);
}

TEST_F(UntoldNeverWaits, SmallBlocksWhoseUseIsSeenToBeOverAreTaken) {
  void* const beside = written(1_KiB, s_);
  void* const y = written(1_KiB, s_);
  EXPECT_TRUE(heap_.record_stream(y, m_).ok());
  order(s_, m_);
  read(y, 1_KiB, m_, kLong);
  free(y);
  void* const z = written(1_KiB, s_);
  EXPECT_NE(z, y);
  device_.finish();
  EXPECT_EQ(written(1_KiB, s_), y);
  EXPECT_EQ(heap_.statistics().stream_waits, 0u);
  free(beside);
  free(z);
}

// A recorded stream that is gone must not keep a block for ever.
TEST_F(Untold, ABlockWhoseRecordedStreamIsGoneComesBack) {
  const Stream gone = device_.new_stream();
  void* const x = written(kBlock, s_);
  EXPECT_TRUE(heap_.record_stream(x, gone).ok());
  device_.fail(DeviceCall::record, 1);  // what a driver may say of a stream that is no more
  free(x);
  EXPECT_FALSE(heap_.find(x).has_value());
  EXPECT_EQ(device_.calls(DeviceCall::record_context), 1u);
}

// A failed capture whose end nobody tells must not keep memory apart for ever.
TEST_F(Untold, ACaptureThatEndedUnannouncedIsSeenToHaveEnded) {
  GraphPool* pool = open_pool();
  Result<PoolBinding> binding = pool->capture([this](Stream asking) { return asking == s_; }, s_);
  ASSERT_TRUE(binding.ok());
  begin_unannounced(s_);
  void* const x = written(kBlock, s_);
  (void)device_.end_capture(s_);
  heap_.set_limit(reserved() + kBlock);
  free(written(kBlock, t_));
  write(allocate(kBlock, m_), kBlock, m_);
  EXPECT_GE(device_.calls(DeviceCall::record_context), 1u);
  binding->close(false);
  free(x);
  close(pool);
}

}  // namespace
}  // namespace weir
