// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_graphs.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "sim/sim_random_order.h"

namespace weir::sim {
namespace {

constexpr int kGraphShift = 32;  // a node's handle: its graph's id, and its number from 1

bool same(const Segment& a, const Segment& b) {
  return a.handle == b.handle && a.offset == b.offset && a.bytes == b.bytes;
}

}  // namespace

Graph::Graph(std::uint64_t id) : id_(id) {}
Graph::~Graph() = default;

StreamIndex Graph::add_chain(std::uint64_t stream) {
  chains_.push_back(stream);
  positions_.push_back(0);
  return static_cast<StreamIndex>(chains_.size() - 1);
}

NodeIndex Graph::add(KernelNode node) {
  node.position = ++positions_[node.chain];
  for (const NodeIndex earlier : node.dependencies) node.clock.join(nodes_[earlier].clock);
  node.clock.set(node.chain, node.position);
  nodes_.push_back(std::move(node));
  return static_cast<NodeIndex>(nodes_.size() - 1);
}

bool Graph::reaches(std::span<const NodeIndex> from, std::span<const NodeIndex> nodes) const {
  VectorClock clock;
  for (const NodeIndex node : from) clock.join(nodes_[node].clock);
  return std::all_of(nodes.begin(), nodes.end(), [&](NodeIndex node) {
    return nodes_[node].position <= clock[nodes_[node].chain];
  });
}

GraphNode Graph::handle(NodeIndex node) const { return {(id_ << kGraphShift) + node + 1}; }

std::optional<NodeIndex> Graph::find(GraphNode node) const {
  const std::uint64_t number = node.value - (id_ << kGraphShift);
  if (graph_id(node) != id_ || number == 0 || number > nodes_.size()) return std::nullopt;
  return static_cast<NodeIndex>(number - 1);
}

Nanoseconds Graph::longest_path() const {
  std::vector<Nanoseconds> ends;
  Nanoseconds last;
  for (const KernelNode& node : nodes_) {
    Nanoseconds begin;
    for (const NodeIndex earlier : node.dependencies) begin = std::max(begin, ends[earlier]);
    ends.push_back(begin + node.duration);
    last = std::max(last, ends.back());
  }
  return last;
}

bool Graph::update_memory(Memory& memory) {
  if (memory_.version == memory.version() && !memory_.begins.empty()) return false;
  GraphMemory now{.segments = {}, .begins = {0}, .version = memory.version()};
  for (const KernelNode& node : nodes_) {
    for (const Access& access : node.accesses) {
      const std::vector<Segment> parts = memory.translate(access.address, access.bytes);
      now.segments.insert(now.segments.end(), parts.begin(), parts.end());
      now.begins.push_back(now.segments.size());
    }
  }
  const bool changed =
      now.begins != memory_.begins ||
      !std::equal(now.segments.begin(), now.segments.end(), memory_.segments.begin(), same);
  memory_ = std::move(now);
  if (changed) random_orders_.reset();
  return changed;
}

void Graph::check_races(RaceChecker& checker) const {
  // Within the graph nothing counts but its own edges: a checker of its own, with a chain as a
  // stream and a node as an epoch of it.
  RaceChecker inside;
  for (const std::uint64_t stream : chains_) inside.add_stream(stream);
  std::unordered_map<std::uint64_t, PageStamps> pages;
  std::size_t number = 0;
  for (const KernelNode& node : nodes_) {
    inside.wait(node.chain, node.clock);
    for (const Access& access : node.accesses) {
      const Stamp stamp = inside.begin(node.chain, access, node.time);
      for (std::size_t i = memory_.begins[number]; i < memory_.begins[number + 1]; ++i) {
        const Segment& part = memory_.segments[i];
        inside.touch(pages[part.handle.value], part.offset.count, (part.offset + part.bytes).count,
                     stamp);
      }
      ++number;
    }
  }
  checker.add_races_of(inside);
}

std::uint64_t Graph::replay_in_random_order(std::uint64_t seed) {
  if (random_orders_ == nullptr) random_orders_ = std::make_unique<RandomOrders>(nodes_, memory_);
  return random_orders_->replay(seed);
}

GraphHandle Graphs::add(std::shared_ptr<Graph> graph) {
  const GraphHandle handle{graph->id()};
  graphs_.emplace(handle.value, std::move(graph));
  return handle;
}

std::shared_ptr<Graph> Graphs::find(GraphHandle graph) const {
  const auto it = graphs_.find(graph.value);
  return it == graphs_.end() ? nullptr : it->second;
}

ExecutableHandle Graphs::instantiate(std::shared_ptr<Graph> graph) {
  const ExecutableHandle handle{next_executable_++};
  const Nanoseconds duration = graph->longest_path();
  executables_.emplace(handle.value, Executable{std::move(graph), duration, {}});
  return handle;
}

Executable* Graphs::find(ExecutableHandle executable) {
  const auto it = executables_.find(executable.value);
  return it == executables_.end() ? nullptr : &it->second;
}

bool Graphs::destroy(ExecutableHandle executable) {
  const auto it = executables_.find(executable.value);
  if (it == executables_.end()) return false;
  if (it->second.graph->retains()) running_.push_back(std::move(it->second));
  executables_.erase(it);
  return true;
}

std::uint64_t graph_id(GraphNode node) { return node.value >> kGraphShift; }

std::vector<GraphNode> handles(const Graph& graph, std::span<const NodeIndex> nodes) {
  std::vector<GraphNode> handles;
  handles.reserve(nodes.size());
  for (const NodeIndex node : nodes) handles.push_back(graph.handle(node));
  return handles;
}

}  // namespace weir::sim
