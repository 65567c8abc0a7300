// SPDX-License-Identifier: Apache-2.0
// Blocks of graph pools under Trust::context (docs/guarantees.md): states that are gone back to,
// streams that end, and what a graph may use beside memory that other streams use.
#include "tests/unit/contract_pools.h"

#include <utility>
#include <vector>

namespace weir {
namespace {

class UntoldPools : public test::ContractPools {};

// Its free was deferred, as a stream that it was recorded on is captured; then it is live again.
TEST_F(UntoldPools, ABlockThatIsLiveAgainIsNotFreedByTheFreeThatWasDeferred) {
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  binding.close();
  const std::vector<PlacedBlock> state = pool->blocks();
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  begin_unannounced(m_);
  free(x);
  EXPECT_TRUE(heap_.find(x).has_value()) << "deferred";
  EXPECT_FALSE(heap_.deallocate(x).ok()) << "a second time";
  EXPECT_TRUE(pool->restore(state).ok());
  end_and_destroy(m_);
  free(written(1_MiB, t_));  // frees what was deferred
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_TRUE(heap_.find(x).has_value());
  write(x, kBlock, s_);
  free(x);
  EXPECT_FALSE(heap_.find(x).has_value());
  close(pool);
}

// ... and it alone.
TEST_F(UntoldPools, OtherFreesThatWereDeferredAreMadeAfterAStateWasGoneBackTo) {
  void* const other = written(kBlock, t_);
  EXPECT_TRUE(heap_.record_stream(other, m_).ok());
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  binding.close();
  const std::vector<PlacedBlock> state = pool->blocks();
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  begin_unannounced(m_);
  free(other);
  free(x);
  EXPECT_TRUE(pool->restore(state).ok());
  end_and_destroy(m_);
  free(written(1_MiB, t_));
  EXPECT_FALSE(heap_.find(other).has_value());
  EXPECT_TRUE(heap_.find(x).has_value());
  free(x);
  close(pool);
}

// The fence is taken at once, so the stream is not needed later: neither by the capture.
TEST_F(UntoldPools, AStreamThatABlockWasFencedOnEndsBeforeTheNextCapture) {
  Stream gone = device_.new_stream();
  gone.may_end = true;
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  order(s_, gone);
  read(x, kBlock, gone);
  EXPECT_TRUE(heap_.fence(x, gone).ok());
  free(x);
  binding.close();
  EXPECT_TRUE(device_.destroy_stream(gone).ok());
  const Result<PoolBinding> next =
      pool->capture([this](Stream asking) { return asking == s_; }, s_);
  EXPECT_TRUE(next.ok()) << (next.ok() ? "" : next.error().message());
  EXPECT_EQ(device_.uses_of_destroyed_streams(), 0u);
}

TEST_F(UntoldPools, ACaptureBeginsWhileAStreamThatABlockWasFencedOnIsAtWork) {
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  order(s_, m_);
  read(x, kBlock, m_, kLong);
  EXPECT_TRUE(heap_.fence(x, m_).ok());
  free(x);
  binding.close();
  const Nanoseconds before = device_.now();
  const std::uint64_t queries = device_.calls(DeviceCall::query);
  Captured captured = capture(*pool, t_, [] { return nullptr; });
  EXPECT_LT(device_.now() - before, kLong) << "row 14: nothing that begins a capture waits";
  EXPECT_LT(device_.calls(DeviceCall::query) - queries, 10u) << "nor asks until it is done";
  drop(captured, *pool);
  close(pool);
}

// t's own memory is used by m still, so t would rather take other memory that nobody uses. The
// graph's is such, until the next launch.
TEST_F(UntoldPools, InThePlaceOfMemoryInUseElsewhereNoMemoryOfAGraphIsTaken) {
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] {
    free(written(kBlock, s_));
    return nullptr;
  });
  {
    PoolBinding binding = warm_up(*pool, t_);
    free(written(2_MiB, t_));
  }
  device_.finish();
  EXPECT_TRUE(heap_.trim().ok());  // the work of all streams so far is seen to be over
  PoolBinding binding = warm_up(*pool, t_);
  void* const x = written(kBlock / 2, t_);
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  order(t_, m_);
  read(x, kBlock / 2, m_, kLong);
  free(x);
  void* const y = written(kBlock / 2, t_, kLong);
  launch(captured, s_);
  free(y);
  binding.close();
  device_.finish();
  drop(captured, *pool);
  close(pool);
}

// A use by a stream that is captured just then into another pool: PyTorch's own allocator asks the
// stream about its work once the block is free and the capture over.
TEST_F(UntoldPools, AStreamThatIsCapturedIntoAnotherPoolUsesABlockAfterwards) {
  GraphPool* const pool = open_pool();
  GraphPool* const others = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  const Captured captured = capture(*others, t_, [&] {
    EXPECT_TRUE(heap_.record_stream(x, t_).ok());
    return nullptr;
  });
  host_wait(s_);
  read(x, kBlock, t_, kLong);
  free(x);
  void* const next = written(kBlock, s_);  // a race, if nothing orders it after t_
  free(next);
  binding.close();
  drop(captured, *others);
  close(pool);
  close(others);
}

// ... nor is its work an edge of the graph that is captured into the block's pool.
TEST_F(UntoldPools, AStreamOfAnotherCaptureLeavesThatOfTheBlockWhole) {
  GraphPool* const pool = open_pool();
  GraphPool* const others = open_pool();
  const Captured captured = capture(*pool, s_, [&] {
    void* const x = written(kBlock, s_);
    const Captured meanwhile = capture(*others, t_, [&] {
      void* const y = written(kBlock, t_);
      EXPECT_TRUE(heap_.record_stream(x, t_).ok());
      EXPECT_TRUE(heap_.fence(x, t_).ok());
      free(x);
      free(y);
      return nullptr;
    });
    drop(meanwhile, *others);
    free(written(kBlock, s_));
    return nullptr;
  });
  drop(captured, *pool);
  close(pool);
  close(others);
}

}  // namespace
}  // namespace weir
