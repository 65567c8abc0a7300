// Aliases of a pool's pages in the long run: a graph may use their addresses whenever it is
// launched.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "graph_pool_fixture.h"

namespace weir::test {
namespace {

class PoolAliases : public GraphPools {
 protected:
  // A step whose sizes are drawn at random: what is made is kept until the way back.
  void step() {
    last_.clear();
    const Bytes unit = 16_KiB * (1 + random_() % 512);
    std::vector<void*> kept;
    for (const std::uint64_t share : {1, 3, 1, 2, 1, 4, 4, 1, 2}) {
      kept.push_back(written(unit * share, a_, 1_us));
      last_.emplace_back(kept.back(), unit * share);
      free(written(unit * 2, a_, 1_us));
    }
    for (; !kept.empty(); kept.pop_back()) {
      void* const gradient = written(unit * 3, a_, 1_us);
      free(kept.back());
      free(gradient);
    }
    device_.advance(1_ms);
  }
  void warm_up_with_steps(GraphPool& pool, int steps) {
    const PoolRoute route = warm_up(pool, a_);
    for (int i = 0; i < steps; ++i) step();
  }

  std::mt19937_64 random_{7};
  std::vector<std::pair<void*, Bytes>> last_;  // of the last step
};

TEST_F(PoolAliases, PagesThatGraphsUseLoseNone) {
  GraphPool pool(*heap_);
  std::vector<Graph> graphs;
  std::vector<std::pair<void*, Bytes>> captured;
  for (int i = 0; i < 8; ++i) {
    warm_up_with_steps(pool, 1000);
    CaptureScope capture = begin(pool, a_);
    step();
    graphs.push_back(end(capture));
    captured.insert(captured.end(), last_.begin(), last_.end());
  }
  // All its pages are used by graphs by now: none loses any, though there are more than elsewhere.
  const Statistics before = heap_->statistics();
  warm_up_with_steps(pool, 3000);
  EXPECT_GE(heap_->statistics().mappings.current, before.mappings.current);
  EXPECT_GT(before.mappings.current, 16 * before.pages.current) << "the program makes too few";
  EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  for (Graph& graph : graphs) {
    launch(graph, a_);
    device_.finish();
  }
  for (const auto& [block, size] : captured) touch(a_, Writes(block, size), 1_us);
}

}  // namespace
}  // namespace weir::test
