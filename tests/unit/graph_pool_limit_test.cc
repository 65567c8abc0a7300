// Graph pools of a heap whose limit is lowered: what nobody uses goes back to the driver, wherever
// it is, as soon as the device is done with it.
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

class GraphPoolLimit : public test::GraphPools {
 protected:
  std::uint64_t reserved() const { return heap_->statistics().reserved_bytes.current; }
};

TEST_F(GraphPoolLimit, ALowerOneCallsInWhatPoolsDoNotUse) {
  GraphPool pool(*heap_);
  { small_graph(pool, a_, 64_MiB); }
  device_.finish();
  heap_->set_limit(16_MiB);
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, ALowerOneCallsThatInBesideWhatIsAtHand) {
  free(allocate(1_KiB, b_));
  GraphPool pool(*heap_);
  {
    const PoolRoute route = warm_up(pool, a_);
    free(written(64_MiB, a_));
  }
  device_.finish();
  heap_->set_limit(16_MiB);
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, AGraphThatGoesUnderALowerOneGivesItsMemoryToTheDriver) {
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_, 64_MiB);
  heap_->set_limit(16_MiB);
  EXPECT_EQ(reserved(), (64_MiB).count) << "the graph may be launched";
  graph = Graph();
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, ABlockThatOutlivesItsPoolGoesToTheDriverUnderALowerOne) {
  void* block = nullptr;
  {
    GraphPool pool(*heap_);
    const PoolRoute route = warm_up(pool, a_);
    block = allocate(64_MiB, a_);
  }
  heap_->set_limit(16_MiB);
  EXPECT_EQ(reserved(), (64_MiB).count);
  free(block);
  EXPECT_LE(reserved(), (16_MiB).count);
}

TEST_F(GraphPoolLimit, UnderALowerOneARequestMayTakeWhatAPoolGivesBack) {
  GraphPool pool(*heap_);
  Graph graph = small_graph(pool, a_, 64_MiB);
  heap_->set_limit(32_MiB);
  graph = Graph();
  free(written(32_MiB, b_));
  EXPECT_LE(reserved(), (32_MiB).count);
}

}  // namespace
}  // namespace weir
