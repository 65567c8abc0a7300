// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_random_order.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace weir::sim {

RandomOrders::RandomOrders(std::span<const KernelNode> nodes, const GraphMemory& memory) {
  add_cells(memory);
  add_nodes(nodes, memory);
  expect();
}

void RandomOrders::add_cells(const GraphMemory& memory) {
  struct Borders {
    std::vector<std::uint64_t> at;
    std::size_t first_cell = 0;
  };
  std::unordered_map<std::uint64_t, Borders> pages;
  for (const Segment& part : memory.segments) {
    std::vector<std::uint64_t>& at = pages[part.handle.value].at;
    at.push_back(part.offset.count);
    at.push_back((part.offset + part.bytes).count);
  }
  std::size_t cells = 0;
  for (auto& [handle, page] : pages) {
    std::sort(page.at.begin(), page.at.end());
    page.at.erase(std::unique(page.at.begin(), page.at.end()), page.at.end());
    page.first_cell = cells;
    cells += page.at.size() - 1;
  }
  cells_.resize(cells);
  for (const Segment& part : memory.segments) {
    const Borders& page = pages[part.handle.value];
    const auto cell_at = [&](Bytes offset) {
      const auto it = std::lower_bound(page.at.begin(), page.at.end(), offset.count);
      return page.first_cell + static_cast<std::size_t>(it - page.at.begin());
    };
    runs_.push_back({.begin = cell_at(part.offset), .end = cell_at(part.offset + part.bytes)});
  }
}

void RandomOrders::add_nodes(std::span<const KernelNode> nodes, const GraphMemory& memory) {
  nodes_.resize(nodes.size());
  std::size_t number = 0;
  for (NodeIndex i = 0; i < nodes.size(); ++i) {
    Node& node = nodes_[i];
    node.dependencies = static_cast<std::uint32_t>(nodes[i].dependencies.size());
    for (const NodeIndex earlier : nodes[i].dependencies) nodes_[earlier].successors.push_back(i);
    for (const Access& access : nodes[i].accesses) {
      const bool reads = access.kind == Access::Kind::read;
      (reads ? node.reads : node.writes)
          .push_back({memory.begins[number], memory.begins[number + 1]});
      ++number;
    }
  }
}

void RandomOrders::expect() {
  std::fill(cells_.begin(), cells_.end(), nodes_.size());
  for (NodeIndex i = 0; i < nodes_.size(); ++i) {
    for (const Touch& read : nodes_[i].reads) {
      for (std::size_t r = read.first_run; r < read.last_run; ++r) {
        Run& run = runs_[r];
        run.expected = expected_.size();
        expected_.insert(expected_.end(), cells_.begin() + static_cast<std::ptrdiff_t>(run.begin),
                         cells_.begin() + static_cast<std::ptrdiff_t>(run.end));
      }
    }
    run(i);
  }
}

bool RandomOrders::reads_right(const Touch& read) const {
  return std::all_of(
      runs_.begin() + static_cast<std::ptrdiff_t>(read.first_run),
      runs_.begin() + static_cast<std::ptrdiff_t>(read.last_run), [&](const Run& run) {
        return std::equal(cells_.begin() + static_cast<std::ptrdiff_t>(run.begin),
                          cells_.begin() + static_cast<std::ptrdiff_t>(run.end),
                          expected_.begin() + static_cast<std::ptrdiff_t>(run.expected));
      });
}

// A node's reads come before its writes: what it wrote itself would hide what it should have seen.
std::uint64_t RandomOrders::run(NodeIndex index) {
  const Node& node = nodes_[index];
  std::uint64_t wrong = 0;
  for (const Touch& read : node.reads) wrong += reads_right(read) ? 0 : 1;
  for (const Touch& write : node.writes) {
    for (std::size_t r = write.first_run; r < write.last_run; ++r) {
      std::fill(cells_.begin() + static_cast<std::ptrdiff_t>(runs_[r].begin),
                cells_.begin() + static_cast<std::ptrdiff_t>(runs_[r].end), index);
    }
  }
  return wrong;
}

// Nodes drawn evenly keep all branches abreast, and would seldom see one that runs far ahead. So
// each order goes on with a node that was just set free with a chance of its own, from never to
// nearly always.
std::uint64_t RandomOrders::replay(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr std::uint64_t kOdds = 1024;
  constexpr std::uint64_t kChances[] = {0, kOdds / 2, kOdds - kOdds / 16, kOdds - 1};
  const std::uint64_t chance = kChances[random() % std::size(kChances)];

  std::fill(cells_.begin(), cells_.end(), nodes_.size());
  missing_.clear();
  ready_.clear();
  for (NodeIndex i = 0; i < nodes_.size(); ++i) {
    missing_.push_back(nodes_[i].dependencies);
    if (missing_.back() == 0) ready_.push_back(i);
  }
  std::uint64_t wrong = 0;
  for (std::size_t freed = 0; !ready_.empty();) {
    const bool goes_on = freed != 0 && random() % kOdds < chance;
    const std::size_t among = goes_on ? freed : ready_.size();
    std::swap(ready_[ready_.size() - 1 - random() % among], ready_.back());
    const NodeIndex node = ready_.back();
    ready_.pop_back();
    wrong += run(node);
    freed = 0;
    for (const NodeIndex next : nodes_[node].successors) {
      if (--missing_[next] != 0) continue;
      ready_.push_back(next);
      ++freed;
    }
  }
  return wrong;
}

}  // namespace weir::sim
