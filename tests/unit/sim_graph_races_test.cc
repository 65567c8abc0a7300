// SPDX-License-Identifier: Apache-2.0
// Races inside a graph, found by the checker and by running the graph in random orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/sim_graph_fixture.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

class SimGraphRaces : public test::SimGraphs {
 protected:
  std::uint64_t wrong_reads(GraphHandle graph, std::uint64_t seeds) {
    std::uint64_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      wrong += device_.replay_in_random_order(graph, seed);
    }
    return wrong;
  }
  // The last kernel on `stream` so far.
  GraphNode last(Stream stream) { return tips(stream).at(0); }
  // Two branches: a writes and reads a slot, b then writes and reads the same one. What orders
  // them is up to `edge`.
  template <class Edge>
  GraphHandle slot_given_to_another_stream(Edge edge) {
    begin(a_);
    order(a_, b_);
    write(a_, 0);
    read(a_, 0);
    edge();
    write(b_, 0);
    read(b_, 0);
    order(b_, a_);
    return end(a_);
  }

  // Of the processor, since other programs run here too.
  static double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
  // `nodes` kernels over four streams, each reading and writing a random slot, after an edge from
  // the one that used it before.
  GraphHandle large_graph(int nodes);
};

TEST_F(SimGraphRaces, ConflictingKernelsInNoOrderAreARaceAtTheEndOfTheCapture) {
  const GraphHandle graph = slot_given_to_another_stream([] {});
  EXPECT_NE(graph.value, 0u) << "a race does not break the capture";
  ASSERT_EQ(device_.race_count(), 2u) << "of the second write, with the write and the read before";
  for (const Race& race : device_.races()) {
    EXPECT_EQ(race.kind, Race::Kind::conflict);
    EXPECT_EQ(race.first_stream, a_.id);
    EXPECT_EQ(race.second_stream, b_.id);
    EXPECT_EQ(race.first.address, page_.address);
    EXPECT_EQ(race.second.bytes, 512_B);
  }
}

TEST_F(SimGraphRaces, MemoryMappedAnewIsCheckedAnewAtTheLaunch) {
  const test::MappedPage other = test::new_page(device_);
  begin(a_);
  order(a_, b_);
  write(a_, 0);
  touch(b_, Writes(other.at(), 512_B));
  order(b_, a_);
  const ExecutableHandle executable = instantiate(end(a_));
  ASSERT_TRUE(device_.launch_graph(executable, a_).ok());
  EXPECT_EQ(device_.race_count(), 0u);
  device_.finish();
  ASSERT_TRUE(device_.unmap(other.address, other.size).ok());
  ASSERT_TRUE(device_.map(other.address, other.size, page_.handle).ok());
  ASSERT_TRUE(device_.set_access(other.address, other.size).ok());
  ASSERT_TRUE(device_.launch_graph(executable, a_).ok());
  EXPECT_EQ(device_.race_count(), 1u) << "both addresses are of one page now";
  ASSERT_TRUE(device_.launch_graph(executable, a_).ok());
  EXPECT_EQ(device_.race_count(), 1u) << "reported once";
}

TEST_F(SimGraphRaces, WithTheEdgeNoOrderOfAThousandHasAWrongRead) {
  const GraphHandle graph = slot_given_to_another_stream([&] { order(a_, b_); });
  EXPECT_EQ(wrong_reads(graph, 1000), 0u);
  EXPECT_EQ(device_.race_count(), 0u);
  const ExecutableHandle executable = instantiate(graph);
  ASSERT_TRUE(device_.destroy_graph(graph).ok());
  EXPECT_EQ(device_.replay_in_random_order(executable, 1), 0u);
}

TEST_F(SimGraphRaces, AnOrderIsAFunctionOfItsSeed) {
  const GraphHandle graph = slot_given_to_another_stream([] {});
  std::vector<std::uint64_t> first, second;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    first.push_back(device_.replay_in_random_order(graph, seed));
  }
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    second.push_back(device_.replay_in_random_order(graph, seed));
  }
  EXPECT_EQ(first, second);
  EXPECT_LT(std::count(first.begin(), first.end(), first[0]), 50) << "orders differ";
}

// Long branches: one end of each meets the other's beginning only in very uneven orders.
TEST_F(SimGraphRaces, RandomOrdersAlsoRunFarAhead) {
  begin(a_);
  order(a_, b_);
  read(b_, 0);
  for (int i = 0; i < 200; ++i) write(a_, 1);
  write(a_, 0);
  order(a_, c_);
  for (int i = 0; i < 200; ++i) write(b_, 2);
  order(b_, a_);
  const GraphHandle graph = end(a_);
  EXPECT_EQ(device_.race_count(), 1u);
  EXPECT_GT(wrong_reads(graph, 100), 0u);
}

GraphHandle SimGraphRaces::large_graph(int nodes) {
  std::mt19937_64 random(7);
  const std::vector<Stream> streams{a_, b_, c_, device_.new_stream()};
  constexpr std::uint64_t kSlots = 256;
  begin(a_);
  for (std::size_t s = 1; s < streams.size(); ++s) order(a_, streams[s]);
  std::vector<std::vector<GraphNode>> users(kSlots);
  for (int i = 0; i < nodes; ++i) {
    const Stream stream = streams[random() % streams.size()];
    const std::uint64_t slot = random() % kSlots;
    std::vector<GraphNode>& before = users[slot];
    EXPECT_TRUE(device_.add_capture_dependencies(stream, before).ok());
    const std::vector<Access> accesses{Reads(at(static_cast<int>(slot)), 512_B),
                                       Writes(at(static_cast<int>(slot)), 512_B)};
    EXPECT_TRUE(device_.launch(stream, accesses, 1_us).ok());
    before = tips(stream);
  }
  for (std::size_t s = 1; s < streams.size(); ++s) order(streams[s], a_);
  return end(a_);
}

// An oracle that knows neither clocks nor chains: each pair of kernels, and each path.
class SmallRandomGraph {
 public:
  void add(GraphNode node, const std::vector<GraphNode>& dependencies, const Access& access) {
    const std::size_t index = nodes_.size();
    nodes_.push_back({node, access, {}});
    std::set<GraphNode>& before = nodes_[index].before;
    for (const GraphNode each : dependencies) {
      before.insert(each);
      for (const Node& known : nodes_) {
        if (known.node == each) before.insert(known.before.begin(), known.before.end());
      }
    }
  }
  bool has_race() const {
    for (const Node& later : nodes_) {
      for (const Node& earlier : nodes_) {
        if (earlier.node == later.node) break;
        const bool conflict = (earlier.access.kind == Access::Kind::write ||
                               later.access.kind == Access::Kind::write) &&
                              earlier.access.address < later.access.address + later.access.bytes &&
                              later.access.address < earlier.access.address + earlier.access.bytes;
        if (conflict && !later.before.contains(earlier.node)) return true;
      }
    }
    return false;
  }

 private:
  struct Node {
    GraphNode node;
    Access access;
    std::set<GraphNode> before;  // all that it comes after
  };
  std::vector<Node> nodes_;
};

TEST_F(SimGraphRaces, RandomGraphsHaveARaceExactlyWhereAnOracleSeesOne) {
  int racy = 0, clean = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::vector<Stream> streams{a_, b_, c_};
    SmallRandomGraph oracle;
    const std::uint64_t races_before = device_.race_count();
    begin(a_);
    order(a_, b_);
    order(a_, c_);
    for (int i = 0; i < 8; ++i) {
      const Stream stream = streams[random() % 3];
      if (random() % 4 != 0) order(streams[random() % 3], stream);
      const std::vector<GraphNode> dependencies = tips(stream);
      const Access::Kind kind = random() % 2 == 0 ? Access::Kind::read : Access::Kind::write;
      const Access access{kind, page_.address + Bytes{random() % 40}, Bytes{1 + random() % 6}};
      touch(stream, access);
      EXPECT_EQ(this->dependencies(last(stream)), dependencies);
      oracle.add(last(stream), dependencies, access);
    }
    order(b_, a_);
    order(c_, a_);
    const GraphHandle graph = end(a_);
    const bool found = device_.race_count() > races_before;
    ASSERT_EQ(found, oracle.has_race());
    if (!found) {
      ASSERT_EQ(wrong_reads(graph, 20), 0u);
    }
    ++(found ? racy : clean);
    ASSERT_TRUE(device_.destroy_graph(graph).ok());
  }
  EXPECT_GT(racy, 300);
  EXPECT_GT(clean, 300);
}

TEST_F(SimGraphRaces, TwentyThousandKernelsAreCheckedInTime) {
  const double start = seconds();
  large_graph(20000);
  EXPECT_LT(seconds() - start, 1.0);
  EXPECT_EQ(device_.race_count(), 0u);
}

}  // namespace
}  // namespace weir
