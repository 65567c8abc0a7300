// SPDX-License-Identifier: Apache-2.0
// Blocks of graph pools under Trust::context (docs/guarantees.md): states that are gone back to,
// streams that end, and what a graph may use beside memory that other streams use.
#include "tests/unit/contract_pools.h"

#include <vector>

namespace weir {
namespace {

class UntoldPools : public test::ContractPools {};

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

}  // namespace
}  // namespace weir
