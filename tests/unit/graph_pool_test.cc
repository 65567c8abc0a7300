// SPDX-License-Identifier: Apache-2.0
// Graph pools: whose requests they serve, and what launches wait for.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

using GraphPoolMemory = test::GraphPools;

// A user of it would be waited for by every launch.
TEST_F(GraphPoolMemory, ABlockThatIsFreedHasNoUsersAndNothingWaitsForThem) {
  GraphPool pool(*heap_);
  PoolBinding binding = warm_up(pool, a_);
  void* const kept = allocate(1_KiB, a_);
  void* const block = written(1_KiB, a_);
  free(block);
  expect_error(heap_->record_stream(block, b_), ErrorCode::unknown_pointer, "record_stream");
  expect_error(heap_->fence(block, b_), ErrorCode::unknown_pointer, "fence");
  touch(b_, Reads(nullptr, 0_B), 5_ms);
  free(kept);
  binding.close();
  device_.advance(1_ms);  // a's own work is over
  const std::uint64_t waited = device_.host_waits();
  Graph graph = small_graph(pool, a_);
  const std::uint64_t waits = device_.calls(DeviceCall::wait);
  launch(graph, a_);
  EXPECT_EQ(device_.host_waits(), waited);
  EXPECT_EQ(device_.calls(DeviceCall::wait), waits) << "the pool's eager work is a's own";
}

TEST_F(GraphPoolMemory, TheInnermostRouteServesAndOuterOnesComeBack) {
  GraphPool outer(*heap_), inner(*heap_);
  const auto live = [](const GraphPool& pool) { return pool.statistics().live_blocks; };
  std::vector<void*> blocks;
  const PoolBinding all = *outer.warm_up([](Stream) { return true; });
  blocks.push_back(allocate(1_MiB, a_));
  EXPECT_EQ(live(outer), 1u);
  {
    const PoolBinding one = warm_up(inner, a_);
    blocks.push_back(allocate(1_MiB, a_));
    EXPECT_EQ(live(inner), 1u);
    blocks.push_back(allocate(1_MiB, b_));
    EXPECT_EQ(live(outer), 2u);
  }
  blocks.push_back(allocate(1_MiB, a_));
  EXPECT_EQ(live(outer), 3u);
  EXPECT_EQ(live(inner), 1u);
  for (void* const block : blocks) free(block);
}

TEST_F(GraphPoolMemory, BindingsMayCloseInAnyOrder) {
  GraphPool first(*heap_), second(*heap_);
  PoolBinding one = warm_up(first, a_), two = warm_up(second, a_);
  one.close();
  one.close();
  void* const bound = allocate(1_MiB, a_);
  EXPECT_EQ(second.statistics().live_blocks, 1u);
  two = PoolBinding();
  void* const eager = allocate(1_MiB, a_);
  EXPECT_EQ(second.statistics().live_blocks, 1u);
  EXPECT_EQ(first.statistics().live_blocks, 0u);
  free(bound);
  free(eager);
}

}  // namespace
}  // namespace weir
