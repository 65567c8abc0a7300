// SPDX-License-Identifier: Apache-2.0
// SimDevice's graphs: the kernels that a capture recorded, what orders them, and what of them can
// be launched. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/race_checker.h"
#include "sim/sim_memory.h"
#include "sim/sim_streams.h"
#include "weir/sim_device.h"

namespace weir::sim {

// A kernel's number within its graph: dense, from 0, in the order of capture.
using NodeIndex = std::uint32_t;

// Nodes captured on one stream are ordered by that stream, so each stream is a chain, and a vector
// clock over the chains says in one comparison whether one node is ordered after another.
struct KernelNode {
  StreamIndex chain = 0;
  std::uint64_t position = 0;  // in its chain, from 1
  VectorClock clock;           // for each chain, how much of it is ordered before this node; and it
  std::vector<NodeIndex> dependencies;  // direct ones; none twice
  std::vector<Access> accesses;
  Nanoseconds duration;
  Nanoseconds time;  // of the capture, on the host's clock
  SimRendezvous rendezvous = {};
};

// What is known of a graph's memory as it is mapped now.
struct GraphMemory {
  // The bytes of each access of each node in order, in pages: access i has segments
  // [begins[i], begins[i + 1]). Bytes that are not mapped are left out.
  std::vector<Segment> segments;
  std::vector<std::size_t> begins;
  std::uint64_t version = 0;  // of the memory's mappings
};

class RandomOrders;

class Graph {
 public:
  explicit Graph(std::uint64_t id);
  ~Graph();

  std::uint64_t id() const { return id_; }
  const std::vector<KernelNode>& nodes() const { return nodes_; }

  // A chain for the nodes captured on the stream that reports call `stream`.
  StreamIndex add_chain(std::uint64_t stream);
  // Its dependencies are nodes of this graph, the chain's last node or later ones among them.
  NodeIndex add(KernelNode node);
  // Are all of `nodes` the same as one of `from`, or ordered before one?
  bool reaches(std::span<const NodeIndex> from, std::span<const NodeIndex> nodes) const;

  GraphNode handle(NodeIndex node) const;
  // Nothing if it is a node of another graph, or none.
  std::optional<NodeIndex> find(GraphNode node) const;

  // For as long as it lives.
  void retain(std::shared_ptr<void> object) { retained_.push_back(std::move(object)); }
  bool retains() const { return !retained_.empty(); }

  // How long it takes on a device that runs all at once that may be.
  Nanoseconds longest_path() const;

  // Looks at the mappings again if they changed. Says whether the graph's bytes did.
  bool update_memory(Memory& memory);
  // Reports each pair of nodes that touch the same bytes, one of them writing, in no order.
  void check_races(RaceChecker& checker) const;
  // The number of reads that see another write than in the order of capture (sim_random_order.h).
  std::uint64_t replay_in_random_order(std::uint64_t seed);

 private:
  const std::uint64_t id_;
  std::vector<std::uint64_t> chains_;     // the stream of each
  std::vector<std::uint64_t> positions_;  // the last one of each
  std::vector<KernelNode> nodes_;
  GraphMemory memory_;
  std::unique_ptr<RandomOrders> random_orders_;  // made when first asked for
  std::vector<std::shared_ptr<void>> retained_;
};

// A graph made ready to launch. It keeps what it needs of the graph.
struct Executable {
  std::shared_ptr<Graph> graph;
  Nanoseconds duration;
  EventState last_launch;  // the next one waits for it
};

// All graphs and executables that live. A graph has the id of the capture that it came from.
class Graphs {
 public:
  GraphHandle add(std::shared_ptr<Graph> graph);
  std::shared_ptr<Graph> find(GraphHandle graph) const;  // null if there is none
  bool destroy(GraphHandle graph) { return graphs_.erase(graph.value) != 0; }

  ExecutableHandle instantiate(std::shared_ptr<Graph> graph);
  Executable* find(ExecutableHandle executable);  // null if there is none
  // One that runs still, and whose graph holds objects, is gone when forget_finished() finds it so.
  bool destroy(ExecutableHandle executable);
  // Calls seen(last launch) for each whose objects are let go.
  template <class Seen>
  void forget_finished(Nanoseconds now, Seen&& seen) {
    std::erase_if(running_, [&](Executable& one) {
      one.last_launch.peers.forget_those_there();
      if (one.last_launch.done_at > now || !one.last_launch.peers.empty()) return false;
      seen(one.last_launch);
      return true;
    });
  }

  std::uint64_t graphs() const { return graphs_.size(); }
  std::uint64_t executables() const { return executables_.size(); }

 private:
  std::map<std::uint64_t, std::shared_ptr<Graph>> graphs_;
  std::map<std::uint64_t, Executable> executables_;
  std::vector<Executable> running_;  // destroyed meanwhile
  std::uint64_t next_executable_ = 1;
};

// The graph that a node's handle names.
std::uint64_t graph_id(GraphNode node);
// Nodes of `graph`, as handles.
std::vector<GraphNode> handles(const Graph& graph, std::span<const NodeIndex> nodes);

}  // namespace weir::sim
