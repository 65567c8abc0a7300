// SPDX-License-Identifier: Apache-2.0
// SimDevice's captures and graphs.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "sim/sim_device_impl.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using sim::no_stream;
using sim::refused;

Error no_graph(DeviceCall call, GraphHandle graph) {
  return refused(call, "invalid handle: no graph " + std::to_string(graph.value));
}
Error no_executable(DeviceCall call, ExecutableHandle executable) {
  return refused(call, "invalid handle: no executable " + std::to_string(executable.value));
}

}  // namespace

void SimDevice::Impl::check_graph(sim::Graph& graph) {
  if (graph.update_memory(memory) && options.check_races) graph.check_races(checker);
}

// A graph that is not there would have no wrong reads, and a test of it could not fail.
std::uint64_t SimDevice::Impl::replay_in_random_order(sim::Graph* graph, std::uint64_t seed) {
  if (graph == nullptr) {
    std::fputs("weir: replay_in_random_order: no such graph or executable\n", stderr);
    std::abort();
  }
  check_graph(*graph);
  return graph->replay_in_random_order(seed);
}

std::uint64_t SimDevice::replay_in_random_order(GraphHandle graph, std::uint64_t seed) {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->replay_in_random_order(impl_->graphs.find(graph).get(), seed);
}

std::uint64_t SimDevice::replay_in_random_order(ExecutableHandle executable, std::uint64_t seed) {
  const std::scoped_lock lock(impl_->mutex);
  sim::Executable* const found = impl_->graphs.find(executable);
  return impl_->replay_in_random_order(found != nullptr ? found->graph.get() : nullptr, seed);
}

Result<CaptureInfo> SimDevice::capture_info(Stream stream) {
  return impl_->call(DeviceCall::capture_info, &CostModel::capture_info,
                     [&](Impl& sim) -> Result<CaptureInfo> {
                       sim.note_use(stream);
                       const Stream known = sim.streams.named(stream);
                       if (sim.streams.find(known) == nullptr) {
                         return no_stream(DeviceCall::capture_info, stream);
                       }
                       return sim.captures.info(known);
                     });
}

Result<CaptureInfo::Status> SimDevice::capture_status(Stream stream) {
  const Result<CaptureInfo> info = capture_info(stream);
  return info ? Result<CaptureInfo::Status>(info->status) : info.error();
}

Result<std::vector<GraphNode>> SimDevice::capture_tips(Stream stream) {
  return impl_->call(DeviceCall::capture_tips, &CostModel::capture_tips,
                     [&](Impl& sim) { return sim.captures.tips(sim.streams.named(stream)); });
}

Status SimDevice::add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) {
  return impl_->call(
      DeviceCall::add_capture_dependencies, &CostModel::add_capture_dependencies,
      [&](Impl& sim) { return sim.captures.add_dependencies(sim.streams.named(stream), nodes); });
}

Result<std::vector<GraphNode>> SimDevice::node_dependencies(GraphNode node) {
  return impl_->call(DeviceCall::node_dependencies, &CostModel::node_dependencies,
                     [&](Impl& sim) -> Result<std::vector<GraphNode>> {
                       const auto finished = sim.graphs.find(GraphHandle{sim::graph_id(node)});
                       const sim::Graph* const graph =
                           finished != nullptr ? finished.get() : sim.captures.find(node);
                       const auto index = graph != nullptr ? graph->find(node) : std::nullopt;
                       if (!index) {
                         return refused(DeviceCall::node_dependencies,
                                        "invalid value: no node " + std::to_string(node.value));
                       }
                       return sim::handles(*graph, graph->nodes()[*index].dependencies);
                     });
}

Status SimDevice::retain(Stream stream, std::shared_ptr<void> object) {
  return impl_->call(DeviceCall::retain, &CostModel::retain, [&](Impl& sim) {
    return sim.captures.retain(sim.streams.named(stream), std::move(object));
  });
}

Status SimDevice::begin_capture(Stream stream, CaptureMode mode) {
  return impl_->call(DeviceCall::begin_capture, &CostModel::begin_capture,
                     [&](Impl& sim) -> Status {
                       if (sim.streams.find(stream) == nullptr) {
                         return no_stream(DeviceCall::begin_capture, stream);
                       }
                       return sim.captures.begin(stream, mode);
                     });
}

Result<GraphHandle> SimDevice::end_capture(Stream stream) {
  return impl_->call(DeviceCall::end_capture, &CostModel::end_capture,
                     [&](Impl& sim) -> Result<GraphHandle> {
                       if (sim.streams.find(stream) == nullptr) {
                         return no_stream(DeviceCall::end_capture, stream);
                       }
                       Result<std::shared_ptr<sim::Graph>> graph = sim.captures.end(stream);
                       if (!graph) return std::move(graph).error();
                       sim.check_graph(**graph);
                       return sim.graphs.add(*std::move(graph));
                     });
}

Result<ExecutableHandle> SimDevice::instantiate(GraphHandle graph) {
  return impl_->call(DeviceCall::instantiate, [&](Impl& sim) -> Result<ExecutableHandle> {
    std::shared_ptr<sim::Graph> found = sim.graphs.find(graph);
    if (found == nullptr) return no_graph(DeviceCall::instantiate, graph);
    const auto nodes = static_cast<std::int64_t>(found->nodes().size());
    sim.charge(DeviceCall::instantiate, {sim.options.costs.instantiate_per_node.count * nodes});
    return sim.graphs.instantiate(std::move(found));
  });
}

Status SimDevice::launch_graph(ExecutableHandle executable, Stream stream) {
  constexpr DeviceCall kCall = DeviceCall::launch_graph;
  return impl_->call(kCall, &CostModel::launch_graph, [&](Impl& sim) -> Status {
    sim::Executable* const found = sim.graphs.find(executable);
    if (found == nullptr) return no_executable(kCall, executable);
    sim::StreamState* const state = sim.streams.find(stream);
    if (state == nullptr) return no_stream(kCall, stream);
    if (sim.captures.capturing(stream)) {
      return Error(ErrorCode::capture,
                   "launch_graph: stream " + std::to_string(stream.id) +
                       " is being captured, and graphs in graphs are not modelled");
    }
    for (const sim::KernelNode& node : found->graph->nodes()) {
      for (const Access& access : node.accesses) {
        if (Status mapped = sim.check_mapped(name_of(kCall), access); !mapped) return mapped;
      }
    }
    sim.check_graph(*found->graph);
    sim.streams.wait(*state, found->last_launch, sim.now());
    sim::Streams::launch(*state, found->duration, sim.now());
    for (const sim::KernelNode& node : found->graph->nodes()) {
      state->meet(node.rendezvous);
      sim.queue(*state, node.accesses);
    }
    sim.streams.record(found->last_launch, *state, sim.now());
    return {};
  });
}

Status SimDevice::destroy_executable(ExecutableHandle executable) {
  return impl_->call(DeviceCall::destroy_executable, &CostModel::destroy_executable,
                     [&](Impl& sim) -> Status {
                       if (!sim.graphs.destroy(executable)) {
                         return no_executable(DeviceCall::destroy_executable, executable);
                       }
                       sim.let_go_of_finished();
                       return {};
                     });
}

Status SimDevice::destroy_graph(GraphHandle graph) {
  return impl_->call(DeviceCall::destroy_graph, &CostModel::destroy_graph,
                     [&](Impl& sim) -> Status {
                       if (sim.graphs.destroy(graph)) return {};
                       return no_graph(DeviceCall::destroy_graph, graph);
                     });
}

}  // namespace weir
