// SPDX-License-Identifier: Apache-2.0
// What PyTorch's own allocator promises without saying so, kept under Trust::context
// (docs/guarantees.md): beside that no use races, no capture breaks and no memory is lost, which
// programs of those rules find out (tests/torch/contract).

#include "tests/unit/contract_fixture.h"
#include "tests/unit/contract_pools.h"

namespace weir {
namespace {

class Untold : public test::ContractPools {
 protected:
  using ContractPools::ContractPools;
};

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

}  // namespace
}  // namespace weir
