// SPDX-License-Identifier: Apache-2.0
// Graph pools: what they hold, share, and give back.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

using GraphPoolMemory = test::GraphPools;

TEST_F(GraphPoolMemory, StreamsShareMemoryByAnEdgeWhereNothingElseGivesTheOrder) {
  GraphPool pool(*heap_);
  CaptureScope capture = begin(pool, a_);
  order(a_, b_);
  void* const first = written(32_MiB, a_);
  read(a_, first);
  free(first);
  EXPECT_EQ(device_.calls(DeviceCall::add_capture_dependencies), 0u);
  void* const second = written(32_MiB, b_);
  EXPECT_GT(device_.calls(DeviceCall::add_capture_dependencies), 0u);
  read(b_, second);
  const std::vector<GraphNode> tips = *device_.capture_tips(b_);
  ASSERT_EQ(tips.size(), 1u);
  free(second);
  order(b_, a_);
  Graph graph = end(capture);
  EXPECT_LE(pool.statistics().reserved_bytes, 34_MiB) << "one block's worth serves both";
  EXPECT_EQ(wrong_reads(graph), 0u);
}

class GraphPoolSizes : public GraphPoolMemory, public testing::WithParamInterface<bool> {};

TEST_P(GraphPoolSizes, ThirteenCapturesWithOutputsKeptHoldWhatTheyNeedTogether) {
  const bool rising = GetParam();
  GraphPool pool(*heap_);
  std::vector<Graph> graphs;
  std::vector<void*> outputs;
  Bytes kept, bound;
  for (std::uint64_t i = 1; i <= 13; ++i) {
    const std::uint64_t size = rising ? i : 14 - i;
    {
      const PoolBinding binding = warm_up(pool, b_);
      for (int layer = 0; layer < 3; ++layer) free(written(Bytes{size * (9_MiB).count}, b_));
    }
    CaptureScope capture = begin(pool, a_);
    outputs.push_back(written(Bytes{size * (2_MiB).count}, a_));
    kept += Bytes{size * (2_MiB).count};
    void* one = written(Bytes{size * (9_MiB).count}, a_);
    for (int layer = 0; layer < 4; ++layer) {
      void* const next = written(Bytes{size * (9_MiB).count}, a_);
      read(a_, one);
      free(std::exchange(one, next));
    }
    free(one);
    bound = std::max(bound, kept + Bytes{2 * size * (9_MiB).count});
    graphs.push_back(end(capture));
    const double reserved = static_cast<double>(pool.statistics().reserved_bytes.count);
    EXPECT_LE(reserved, 1.05 * static_cast<double>(bound.count)) << "after capture " << i;
  }
  EXPECT_EQ(pool.statistics().graphs, 13u);
  for (Graph& graph : graphs) {
    EXPECT_EQ(wrong_reads(graph, 5), 0u);
    launch(graph, a_);
  }
  for (void* const output : outputs) read(a_, output);
  for (void* const output : outputs) free(output);
}
INSTANTIATE_TEST_SUITE_P(All, GraphPoolSizes, testing::Bool(),
                         [](const auto& info) { return info.param ? "Rising" : "Falling"; });

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
