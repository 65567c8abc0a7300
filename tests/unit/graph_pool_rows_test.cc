// SPDX-License-Identifier: Apache-2.0
// Stitched rows of a pool's pages in the long run: a graph may use their addresses whenever it is
// launched.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/unit/graph_pool_fixture.h"

namespace weir::test {
namespace {

class PoolRows : public GraphPools {
 protected:
  using GraphPools::GraphPools;

  // Blocks of 64 KiB to 16 MiB, of which always about as many bytes are in use; at the end, none.
  void replace_at_random(int requests) {
    last_.clear();
    Bytes in_use;
    const auto free_one = [&] {
      std::swap(last_[random_() % last_.size()], last_.back());
      in_use -= last_.back().second;
      free(last_.back().first);
      last_.pop_back();
    };
    for (int i = 0; i < requests; ++i) {
      const Bytes size = 64_KiB * (1 + random_() % 256);
      while (in_use + size > 192_MiB) free_one();
      last_.emplace_back(written(size, a_, 1_us), size);
      in_use += size;
      device_.advance(100_us);
    }
    for (const auto& [block, size] : last_) free(block);
  }
  void warm_up_at_random(GraphPool& pool, int requests) {
    const PoolBinding binding = warm_up(pool, a_);
    replace_at_random(requests);
  }

  std::mt19937_64 random_{7};
  std::vector<std::pair<void*, Bytes>> last_;  // that were live at the end
};

// Sixteen layers of a prefill in thirteen batch sizes, the smallest first, each captured into the
// same pool. A graph's output stays, and the next graphs take what it leaves.
TEST_F(PoolRows, OutputsThatStayLeaveTheNextCapturesAllButAHundredth) {
  // Of one layer: a block of so many quarters of the batch's hidden state, or, of none, its end.
  struct Op {
    int block;
    unsigned quarters;
  };
  constexpr std::array kLayer = std::to_array<Op>(
      {{1, 8},  {2, 8},  {2, 0},  {3, 8},  {1, 0},   {4, 4},   {5, 4},  {4, 0},   {3, 0},   {6, 4},
       {7, 2},  {8, 2},  {9, 4},  {10, 2}, {11, 4},  {10, 0},  {12, 4}, {11, 0},  {13, 4},  {9, 0},
       {12, 0}, {14, 2}, {15, 1}, {16, 2}, {15, 0},  {17, 2},  {16, 0}, {18, 2},  {14, 0},  {17, 0},
       {6, 0},  {7, 0},  {19, 4}, {20, 4}, {22, 4},  {19, 0},  {20, 0}, {23, 4},  {22, 0},  {13, 0},
       {18, 0}, {8, 0},  {5, 0},  {24, 4}, {23, 0},  {25, 8},  {26, 8}, {26, 0},  {27, 8},  {25, 0},
       {28, 4}, {29, 4}, {28, 0}, {27, 0}, {30, 11}, {31, 11}, {30, 0}, {32, 11}, {33, 11}, {31, 0},
       {32, 0}, {34, 4}, {33, 0}, {29, 0}, {35, 4},  {34, 0},  {24, 0}});
  GraphPool pool(*heap_);
  std::vector<Graph> graphs;
  std::vector<void*> stay;
  Bytes live, peak;
  std::unordered_map<void*, Bytes> sizes;
  const auto take = [&](Bytes bytes) {
    void* const block = allocate(bytes, a_);
    live += sizes[block] = bytes;
    peak = std::max(peak, live);
    return block;
  };
  const auto drop = [&](void* block) {
    live -= sizes.at(block);
    sizes.erase(block);
    free(block);
  };
  for (const unsigned batch : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256}) {
    const Bytes hidden = 256_KiB * batch;
    CaptureScope capture = begin(pool, a_);
    void* const input = take(hidden);
    if (stay.empty()) stay.push_back(take(32_MiB));  // a library's workspace
    void* const small = take(4_KiB);
    void* residual = nullptr;
    for (int layer = 0; layer < 16; ++layer) {
      std::unordered_map<int, void*> blocks;
      for (const auto [block, quarters] : kLayer) {
        if (quarters > 0) {
          blocks[block] = take(hidden / 4 * quarters);
        } else {
          drop(blocks.at(block));
        }
      }
      if (residual != nullptr) drop(residual);
      residual = blocks.at(35);
    }
    void* const in_float = take(hidden * 2);
    drop(take(hidden * 2));
    void* const normal = take(hidden * 2);
    drop(in_float);
    void* const rounded = take(hidden);
    stay.push_back(take(hidden));
    for (void* const block : {rounded, normal, residual, input, small}) drop(block);
    graphs.push_back(end(capture));
  }
  EXPECT_LE(static_cast<double>(pool.statistics().reserved_bytes.count),
            1.01 * static_cast<double>(peak.count));
  for (void* const block : stay) free(block);
}

TEST_F(PoolRows, PagesThatGraphsUseLoseNone) {
  GraphPool pool(*heap_);
  std::vector<Graph> graphs;
  std::vector<std::pair<void*, Bytes>> captured;
  for (int i = 0; i < 8; ++i) {
    warm_up_at_random(pool, 1000);
    CaptureScope capture = begin(pool, a_);
    replace_at_random(100);
    graphs.push_back(end(capture));
    captured.insert(captured.end(), last_.begin(), last_.end());
  }
  // All its pages are used by graphs by now: none loses any, though there are more than elsewhere.
  const Statistics before = heap_->statistics();
  EXPECT_GT(before.mappings.current, 17 * before.pages.current) << "the program makes too few";
  const std::uint64_t unmaps = device_.calls(DeviceCall::unmap);
  warm_up_at_random(pool, 24'000);
  EXPECT_EQ(device_.calls(DeviceCall::unmap), unmaps);
  EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  for (Graph& graph : graphs) {
    launch(graph, a_);
    device_.finish();
  }
  for (const auto& [block, size] : captured) touch(a_, Writes(block, size), 1_us);
}

class PoolRowsOfFewMappings : public PoolRows {
 protected:
  PoolRowsOfFewMappings() : PoolRows({.most_mappings = 500}) {}

  // As replace_at_random(), but a request may fail.
  void try_at_random(int requests) {
    std::vector<std::pair<void*, Bytes>> live;
    Bytes in_use;
    for (int i = 0; i < requests; ++i) {
      const Bytes size = 64_KiB * (1 + random_() % 256);
      while (in_use + size > 192_MiB) {
        std::swap(live[random_() % live.size()], live.back());
        in_use -= live.back().second;
        EXPECT_TRUE(heap_->deallocate(live.back().first).ok());
        live.pop_back();
      }
      device_.advance(100_us);
      const Result<void*> block = heap_->allocate(size, a_);
      if (!block.ok()) continue;
      touch(a_, Writes(*block, size), 1_us);
      live.emplace_back(*block, size);
      in_use += size;
    }
    for (const auto& [block, size] : live) EXPECT_TRUE(heap_->deallocate(block).ok());
  }
};

// Rows give up their mappings where those run short, but not those that a graph writes to.
TEST_F(PoolRowsOfFewMappings, RowsThatGraphsUseStayWhereMappingsRunShort) {
  GraphPool pool(*heap_);
  const auto warm_up_and_try = [&](int requests) {
    const PoolBinding binding = warm_up(pool, a_);
    try_at_random(requests);
  };
  warm_up_and_try(300);
  CaptureScope capture = begin(pool, a_);
  try_at_random(10);  // so that some rows are of no page that the graph keeps
  Graph graph = end(capture);
  const std::uint64_t unmaps = device_.calls(DeviceCall::unmap);
  warm_up_and_try(6000);
  EXPECT_GT(device_.calls(DeviceCall::unmap), unmaps) << "mappings did not run short";
  launch(graph, a_);
}

}  // namespace
}  // namespace weir::test
