// Aliases of a pool's pages in the long run: those whose addresses a graph uses stay.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "graph_pool_fixture.h"

namespace weir::test {
namespace {

class PoolAliases : public GraphPools {
 protected:
  // A step whose sizes are drawn at random: what is made is kept until the way back.
  void step() {
    const Bytes unit = 16_KiB * (1 + random_() % 512);
    std::vector<void*> kept;
    for (const std::uint64_t share : {1, 3, 1, 2, 1, 4, 4, 1, 2}) {
      kept.push_back(written(unit * share, a_, 1_us));
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
};

TEST_F(PoolAliases, WhatAGraphUsesStaysHoweverLongOthersUseThePool) {
  GraphPool pool(*heap_);
  std::vector<Graph> graphs;
  for (int i = 0; i < 3; ++i) {
    warm_up_with_steps(pool, 1500);
    CaptureScope capture = begin(pool, a_);
    step();
    graphs.push_back(end(capture));
  }
  warm_up_with_steps(pool, 3000);
  EXPECT_GT(device_.calls(DeviceCall::unmap), 0u) << "none was unmapped";
  EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  for (Graph& graph : graphs) {
    launch(graph, a_);
    device_.finish();
  }
}

}  // namespace
}  // namespace weir::test
