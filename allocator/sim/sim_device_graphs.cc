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

Status SimDevice::Impl::begin_capture(Stream stream, CaptureMode mode) {
  if (streams_.find(stream) == nullptr) return no_stream(DeviceCall::begin_capture, stream);
  return captures_.begin(stream, mode);
}

Result<GraphHandle> SimDevice::Impl::end_capture(Stream stream) {
  if (streams_.find(stream) == nullptr) return no_stream(DeviceCall::end_capture, stream);
  Result<std::shared_ptr<sim::Graph>> graph = captures_.end(stream);
  if (!graph) return std::move(graph).error();
  check_graph(**graph);
  return graphs_.add(*std::move(graph));
}

void SimDevice::Impl::check_graph(sim::Graph& graph) {
  if (graph.update_memory(memory_) && options_.check_races) graph.check_races(checker_);
}

Result<std::vector<GraphNode>> SimDevice::Impl::node_dependencies(GraphNode node) const {
  const std::shared_ptr<sim::Graph> finished = graphs_.find(GraphHandle{sim::graph_id(node)});
  const sim::Graph* graph = finished != nullptr ? finished.get() : captures_.find(node);
  const auto index = graph != nullptr ? graph->find(node) : std::nullopt;
  if (!index) {
    return refused(DeviceCall::node_dependencies,
                   "invalid value: no node " + std::to_string(node.value));
  }
  return sim::handles(*graph, graph->nodes()[*index].dependencies);
}

Result<ExecutableHandle> SimDevice::Impl::instantiate(GraphHandle graph) {
  std::shared_ptr<sim::Graph> found = graphs_.find(graph);
  if (found == nullptr) return no_graph(DeviceCall::instantiate, graph);
  const auto nodes = static_cast<std::int64_t>(found->nodes().size());
  charge(DeviceCall::instantiate, {options_.costs.instantiate_per_node.count * nodes});
  return graphs_.instantiate(std::move(found));
}

Status SimDevice::Impl::launch_graph(ExecutableHandle executable, Stream stream) {
  constexpr DeviceCall kCall = DeviceCall::launch_graph;
  sim::Executable* const found = graphs_.find(executable);
  if (found == nullptr) return no_executable(kCall, executable);
  sim::StreamState* const state = streams_.find(stream);
  if (state == nullptr) return no_stream(kCall, stream);
  if (captures_.capturing(stream)) {
    return Error(ErrorCode::capture,
                 "launch_graph: stream " + std::to_string(stream.id) +
                     " is being captured, and graphs in graphs are not modelled");
  }
  for (const sim::KernelNode& node : found->graph->nodes()) {
    for (const Access& access : node.accesses) {
      if (Status mapped = check_mapped(name_of(kCall), access); !mapped) return mapped;
    }
  }
  check_graph(*found->graph);
  streams_.wait(*state, found->last_launch, now());
  sim::Streams::launch(*state, found->duration, now());
  for (const sim::KernelNode& node : found->graph->nodes()) {
    state->meet(node.rendezvous);
    for (const Access& access : node.accesses) note_write(access);
  }
  if (options_.check_races) {
    for (const sim::KernelNode& node : found->graph->nodes()) {
      for (const Access& access : node.accesses) stamp(*state, access);
    }
  }
  streams_.record(found->last_launch, *state, now());
  return {};
}

Status SimDevice::Impl::destroy_stream(Stream stream) {
  if (captures_.capturing(stream)) {
    return Error(ErrorCode::invalid_argument, "destroy_stream: stream " +
                                                  std::to_string(stream.id) +
                                                  " is being captured: end that first");
  }
  return streams_.destroy(stream, now());
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
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->replay_in_random_order(impl_->graphs_.find(graph).get(), seed);
}

std::uint64_t SimDevice::replay_in_random_order(ExecutableHandle executable, std::uint64_t seed) {
  const std::scoped_lock lock(impl_->mutex_);
  sim::Executable* const found = impl_->graphs_.find(executable);
  return impl_->replay_in_random_order(found != nullptr ? found->graph.get() : nullptr, seed);
}

std::uint64_t SimDevice::live_graphs() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->graphs_.graphs();
}

std::uint64_t SimDevice::live_executables() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->graphs_.executables();
}

Result<CaptureInfo> SimDevice::capture_info(Stream stream) {
  return impl_->call(DeviceCall::capture_info, impl_->options_.costs.capture_info,
                     [&]() -> Result<CaptureInfo> {
                       impl_->note_use(stream);
                       const Stream known = impl_->streams_.named(stream);
                       if (impl_->streams_.find(known) == nullptr) {
                         return no_stream(DeviceCall::capture_info, stream);
                       }
                       return impl_->captures_.info(known);
                     });
}

Result<CaptureInfo::Status> SimDevice::capture_status(Stream stream) {
  const Result<CaptureInfo> info = capture_info(stream);
  return info ? Result<CaptureInfo::Status>(info->status) : info.error();
}

Result<std::vector<GraphNode>> SimDevice::capture_tips(Stream stream) {
  return impl_->call(DeviceCall::capture_tips, impl_->options_.costs.capture_tips,
                     [&] { return impl_->captures_.tips(impl_->streams_.named(stream)); });
}

Status SimDevice::add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) {
  return impl_->call(
      DeviceCall::add_capture_dependencies, impl_->options_.costs.add_capture_dependencies,
      [&] { return impl_->captures_.add_dependencies(impl_->streams_.named(stream), nodes); });
}

Result<std::vector<GraphNode>> SimDevice::node_dependencies(GraphNode node) {
  return impl_->call(DeviceCall::node_dependencies, impl_->options_.costs.node_dependencies,
                     [&] { return impl_->node_dependencies(node); });
}

Status SimDevice::retain(Stream stream, std::shared_ptr<void> object) {
  return impl_->call(DeviceCall::retain, impl_->options_.costs.retain, [&] {
    return impl_->captures_.retain(impl_->streams_.named(stream), std::move(object));
  });
}

Status SimDevice::begin_capture(Stream stream, CaptureMode mode) {
  return impl_->call(DeviceCall::begin_capture, impl_->options_.costs.begin_capture,
                     [&] { return impl_->begin_capture(stream, mode); });
}

Result<GraphHandle> SimDevice::end_capture(Stream stream) {
  return impl_->call(DeviceCall::end_capture, impl_->options_.costs.end_capture,
                     [&] { return impl_->end_capture(stream); });
}

Result<ExecutableHandle> SimDevice::instantiate(GraphHandle graph) {
  return impl_->call(DeviceCall::instantiate, 0_ns,  // charged by the node, once they are known
                     [&] { return impl_->instantiate(graph); });
}

Status SimDevice::launch_graph(ExecutableHandle executable, Stream stream) {
  return impl_->call(DeviceCall::launch_graph, impl_->options_.costs.launch_graph,
                     [&] { return impl_->launch_graph(executable, stream); });
}

Status SimDevice::destroy_executable(ExecutableHandle executable) {
  return impl_->call(DeviceCall::destroy_executable, impl_->options_.costs.destroy_executable,
                     [&]() -> Status {
                       if (!impl_->graphs_.destroy(executable)) {
                         return no_executable(DeviceCall::destroy_executable, executable);
                       }
                       impl_->let_go_of_finished();
                       return {};
                     });
}

Status SimDevice::destroy_graph(GraphHandle graph) {
  return impl_->call(DeviceCall::destroy_graph, impl_->options_.costs.destroy_graph,
                     [&]() -> Status {
                       if (impl_->graphs_.destroy(graph)) return {};
                       return no_graph(DeviceCall::destroy_graph, graph);
                     });
}

}  // namespace weir
