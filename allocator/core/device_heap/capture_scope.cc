// SPDX-License-Identifier: Apache-2.0
// Captures with a pool attached, and the graphs they make.
#include <atomic>
#include <memory>
#include <utility>

#include "core/device_heap/device_heap_impl.h"
#include "weir/graph_pool.h"

namespace weir {

Result<CaptureScope> CaptureScope::begin(GraphPool& pool, Stream stream, CaptureMode mode) {
  Device& device = pool.heap().impl_->pools.shared().device;
  // The binding is open before the capture, so that no request of it goes astray; its id is not
  // known before it has begun. Until then whatever captures `stream` is this capture.
  auto id = std::make_shared<std::atomic<std::uint64_t>>(0);
  const auto takes = [id, stream](Stream asking, const CaptureInfo& info) {
    if (info.status == CaptureInfo::Status::none) return false;
    const std::uint64_t known = id->load();
    return known == 0 ? asking == stream : info.id == known;
  };
  DeviceHeap::Impl& heap = *pool.heap().impl_;
  Result<std::uint64_t> binding = heap.taking_back(
      [&] { return heap.entrance.bind(pool.pool_, takes, PoolBindings::Kind::scoped, stream); });
  if (!binding) return std::move(binding).error();
  PoolBinding open(&pool.heap(), *binding);
  if (Status begun = device.begin_capture(stream, mode); !begun) {
    open.close(/*keep=*/false);
    return std::move(begun).error();
  }
  CaptureScope scope(pool.pool_, device, stream);
  scope.binding_ = std::move(open);
  Result<CaptureInfo> info = device.capture_info(stream);
  if (!info) return std::move(info).error();  // the scope throws the capture away
  id->store(info->id);
  scope.id_ = info->id;
  return scope;
}

CaptureScope::CaptureScope(CaptureScope&&) noexcept = default;

CaptureScope& CaptureScope::operator=(CaptureScope&& other) noexcept {
  if (this != &other) {
    std::destroy_at(this);
    std::construct_at(this, std::move(other));
  }
  return *this;
}

CaptureScope::~CaptureScope() { abandon(); }

void CaptureScope::abandon() {
  if (std::exchange(pool_, nullptr) == nullptr) return;
  if (const Result<GraphHandle> graph = device_->end_capture(stream_)) {
    (void)device_->destroy_graph(*graph);
  }
  binding_.close(/*keep=*/false);
}

// What can't be joined is named when the capture ends: it spoils it.
void CaptureScope::join(Stream forked) {
  const Result<CaptureInfo> info = device_->capture_info(forked);
  if (!info || info->id != id_) return;
  const Result<EventHandle> end = device_->create_event();
  if (!end) return;
  if (device_->record(*end, forked)) (void)device_->wait(stream_, *end);
  (void)device_->destroy_event(*end);
}

std::vector<std::shared_ptr<CaptureResource>> CaptureScope::resources() const {
  std::vector<std::shared_ptr<CaptureResource>> all;
  if (pool_ == nullptr) return all;
  for (CaptureAttachment& each : binding_.attached()) {
    if (each.resource != nullptr) all.push_back(std::move(each.resource));
  }
  return all;
}

Result<Graph> CaptureScope::end() {
  if (pool_ == nullptr) {
    return Error(ErrorCode::invalid_argument, "CaptureScope::end: the capture has ended already");
  }
  for (const CaptureAttachment& each : binding_.attached()) join(each.forked);
  std::vector<std::shared_ptr<CaptureResource>> resources = this->resources();
  Result<GraphHandle> captured = device_->end_capture(stream_);
  if (!captured) {
    const Result<CaptureInfo> info = device_->capture_info(stream_);
    if (info && info->status == CaptureInfo::Status::active && info->id == id_) {
      return Error(
          captured.error().code(),
          captured.error().message() + ". The capture goes on: end it in the thread that began it");
    }
    pool_.reset();
    binding_.close(/*keep=*/false);
    return std::move(captured).error();
  }
  std::shared_ptr<CapturePool> pool = std::exchange(pool_, nullptr);
  Graph graph;
  graph.device_ = device_;
  graph.graph_ = *captured;
  Result<ExecutableHandle> executable = device_->instantiate(*captured);
  graph.heap_ = binding_.heap_;
  binding_.close(/*keep=*/executable.ok());
  if (!executable) return std::move(executable).error();  // the graph's destructor has the rest
  graph.executable_ = *executable;
  graph.pool_ = std::move(pool);
  graph.resources_ = std::move(resources);
  return graph;
}

Graph::Graph(Graph&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      heap_(other.heap_),
      graph_(std::exchange(other.graph_, {})),
      executable_(std::exchange(other.executable_, {})),
      pool_(std::move(other.pool_)),
      resources_(std::move(other.resources_)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  if (this != &other) {
    std::destroy_at(this);
    std::construct_at(this, std::move(other));
  }
  return *this;
}

Graph::~Graph() { destroy(); }

void Graph::destroy() {
  Device* const device = std::exchange(device_, nullptr);
  if (device == nullptr) return;
  if (executable_.value != 0) (void)device->destroy_executable(executable_);
  (void)device->destroy_graph(graph_);
  if (pool_ != nullptr) pool_->release_graph();
  pool_.reset();
}

ExecutableHandle Graph::executable() const {
  if (pool_ == nullptr || pool_->scratch().launches_told()) return executable_;
  const auto keep = [&] { return pool_->scratch().keep(true); };
  return heap_->impl_->taking_back(keep) ? executable_ : ExecutableHandle{};
}

Status Graph::launch(Stream stream) {
  if (device_ == nullptr) {
    return Error(ErrorCode::invalid_argument, "Graph::launch: there is no graph");
  }
  if (Status begun = heap_->impl_->begin_launch(*pool_, stream); !begun) {
    return Error(begun.error().code(), "Graph::launch: " + begun.error().message());
  }
  Status launched = device_->launch_graph(executable_, stream);
  pool_->scratch().end_launch(stream, launched.ok());
  return launched;
}

}  // namespace weir
