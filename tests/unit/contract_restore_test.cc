// SPDX-License-Identifier: Apache-2.0
// Going back to a state of a pool (GraphPool::restore()): which states are refused, and what
// becomes of frees that were deferred.
#include <vector>

#include "tests/unit/contract_pools.h"
#include "tests/unit/core_heap_fixture.h"

namespace weir {
namespace {

class PoolRestore : public test::ContractPools {
 protected:
  // No event can be recorded, neither of a stream nor of the context, so often.
  void refuse_records(std::uint64_t times) {
    for (std::uint64_t i = 1; i <= times; ++i) {
      device_.fail(DeviceCall::record, i);
      device_.fail(DeviceCall::record_context, i);
    }
  }
};

TEST_F(PoolRestore, AStateWithALiveBlockOfARetiredStreamIsGoneBackTo) {
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, t_);
  void* const x = written(kBlock, t_);
  binding.close();
  EXPECT_TRUE(heap_.retire(t_).ok());
  const Status restored = pool->restore(pool->blocks());
  EXPECT_TRUE(restored.ok()) << restored.error().message();
  free(x);
}

// The deferred free fails when restore() begins, and the same block's free succeeds later in it: it
// must not be made once more, of the next block at that address.
TEST_F(PoolRestore, AFreeThatThePoolDeferredIsForgottenOnceTheBlockIsGone) {
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  binding.close();
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  Captured captured = capture(*pool, s_, [&] {
    free(x);
    refuse_records(3);
    return nullptr;
  });
  EXPECT_TRUE(heap_.find(x).has_value()) << "deferred";
  EXPECT_TRUE(pool->restore({}).ok());
  for (const std::string& broken : heap_.validate()) ADD_FAILURE() << broken;
  PoolBinding again = warm_up(*pool, s_);
  void* const y = written(kBlock, s_);
  again.close();
  EXPECT_TRUE(heap_.find(y).has_value());
  drop(captured, *pool);
}

class ToldRestore : public test::CoreHeap {};

// A block is put back into the middle of bytes that another stream uses: who gets the rest waits.
TEST_F(ToldRestore, WhatIsLeftBesideASmallBlockIsUsedByWhomItWas) {
  DeviceHeap heap(device_);
  GraphPool pool(heap);
  const Result<PoolBinding> binding = pool.warm_up(a_);
  ASSERT_TRUE(binding.ok());
  (void)allocate(heap, 1_KiB, a_);  // so that the slab stays
  void* const before = allocate(heap, 4_KiB, a_);
  void* const back = allocate(heap, 5_KiB, a_);
  std::vector<PlacedBlock> wanted = pool.blocks();
  std::erase_if(wanted, [&](const PlacedBlock& block) { return block.bytes == 4_KiB; });
  free(heap, before);
  free(heap, back);
  void* const x = allocate(heap, 200_KiB, a_);
  EXPECT_EQ(x, before);
  ASSERT_TRUE(heap.record_stream(x, b_).ok());
  write(b_, x, 200_KiB, 50_ms);
  free(heap, x);
  ASSERT_TRUE(pool.restore(wanted).ok());
  void* const y = allocate(heap, 100_KiB, a_);
  EXPECT_GT(y, back);
  write(a_, y, 100_KiB);
  EXPECT_EQ(device_.race_count(), 0u) << "a waits for b";
  device_.finish();
}

}  // namespace
}  // namespace weir
