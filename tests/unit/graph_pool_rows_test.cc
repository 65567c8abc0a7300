// SPDX-License-Identifier: Apache-2.0
// Stitched rows of a pool's pages in the long run: a graph may use their addresses whenever it is
// launched.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
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

}  // namespace
}  // namespace weir::test
