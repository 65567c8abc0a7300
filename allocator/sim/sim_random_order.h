// SPDX-License-Identifier: Apache-2.0
// A graph's kernels run in orders that its edges allow, over bytes that remember who wrote them.
//
// A second opinion on the race checker: it knows nothing of clocks, only edges and bytes.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "sim/sim_graphs.h"

namespace weir::sim {

class RandomOrders {
 public:
  // Bytes between two borders of accesses all share one fate, and are one cell.
  RandomOrders(std::span<const KernelNode> nodes, const GraphMemory& memory);

  // Runs all nodes once. Every write leaves its node's number; a read is wrong if any of its bytes
  // holds another number than when the nodes run in the order of capture. Returns how many are.
  // The order is a function of the seed.
  std::uint64_t replay(std::uint64_t seed);

 private:
  struct Run {  // of cells, [begin, end)
    std::size_t begin = 0, end = 0;
    std::size_t expected = 0;  // of a read: where expected_ has its cells
  };
  struct Touch {  // one access
    std::size_t first_run = 0, last_run = 0;
  };
  struct Node {
    std::vector<Touch> reads, writes;
    std::vector<NodeIndex> successors;
    std::uint32_t dependencies = 0;
  };

  void add_cells(const GraphMemory& memory);
  void add_nodes(std::span<const KernelNode> nodes, const GraphMemory& memory);
  void expect();
  // Runs one node over cells_; returns its wrong reads.
  std::uint64_t run(NodeIndex node);
  bool reads_right(const Touch& read) const;

  std::vector<Node> nodes_;
  std::vector<Run> runs_;                // one a segment of the memory
  std::vector<std::uint32_t> expected_;  // for each cell that a read covers, its writer
  std::vector<std::uint32_t> cells_;     // the last writer; the number of nodes: none yet

  // Scratch of one replay, kept since a thousand follow each other.
  std::vector<std::uint32_t> missing_;  // dependencies yet to run
  std::vector<NodeIndex> ready_;
};

}  // namespace weir::sim
