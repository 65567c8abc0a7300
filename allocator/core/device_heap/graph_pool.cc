// SPDX-License-Identifier: Apache-2.0
#include "weir/graph_pool.h"

#include <utility>

#include "core/device_heap/device_heap_impl.h"

namespace weir {

GraphPool::GraphPool(DeviceHeap& heap, GraphPoolOptions options)
    : heap_(&heap),
      pool_(heap.impl_->pools.open(options.limit, options.memory, std::move(options.tag),
                                   options.scratch)) {}

GraphPool::~GraphPool() { heap_->impl_->pools.close(pool_); }

std::uint64_t GraphPool::id() const { return pool_->id(); }

Result<void*> GraphPool::allocate(Bytes bytes, Stream stream) {
  return heap_->impl_->allocate_block(bytes, stream, &pool_);
}

Result<void*> GraphPool::take_free(Bytes bytes, Stream stream) {
  return heap_->impl_->take_free_in(pool_, bytes, stream);
}

Result<PoolBinding> GraphPool::warm_up(Stream stream) {
  return warm_up([stream](Stream asking) { return asking == stream; });
}

Result<PoolBinding> GraphPool::warm_up(StreamFilter filter) {
  return bind(std::move(filter), Takes::eager);
}

Result<PoolBinding> GraphPool::serve(StreamFilter filter) {
  return bind(std::move(filter), Takes::eager_alone);
}

Result<PoolBinding> GraphPool::capture(StreamFilter filter, std::optional<Stream> origin) {
  return bind(std::move(filter), Takes::captured, origin);
}

Result<PoolBinding> GraphPool::bind(StreamFilter filter, Takes what, std::optional<Stream> origin) {
  if (!filter) return Error(ErrorCode::invalid_argument, "GraphPool: an empty filter");
  const bool not_captured = what == Takes::eager_alone;
  const auto takes = [filter = std::move(filter), not_captured](Stream stream,
                                                                const CaptureInfo& info) {
    if (not_captured && info.status != CaptureInfo::Status::none) return false;
    return filter(stream);
  };
  const auto kind =
      what == Takes::captured ? PoolBindings::Kind::captured : PoolBindings::Kind::eager;
  Result<std::uint64_t> id = heap_->impl_->taking_back(
      [&] { return heap_->impl_->entrance.bind(pool_, takes, kind, origin); });
  if (!id) return std::move(id).error();
  return PoolBinding(heap_, *id);
}

Result<GraphLaunch> GraphPool::begin_launch(Stream stream) {
  if (Status begun = heap_->impl_->begin_launch(*pool_, stream); !begun) {
    return std::move(begun).error();
  }
  return GraphLaunch(pool_, stream);
}

Status GraphPool::keep_scratch(bool keep) {
  return heap_->impl_->taking_back([&] { return pool_->scratch().keep(keep); });
}

GraphLaunch::~GraphLaunch() {
  if (pool_ != nullptr) pool_->scratch().end_launch(stream_, launched_);
}

void GraphPool::release_graph() { pool_->release_graph(); }
GraphPoolStatistics GraphPool::statistics() const { return pool_->statistics(); }
std::vector<PlacedBlock> GraphPool::blocks() const { return pool_->blocks(); }
Status GraphPool::restore(std::span<const PlacedBlock> blocks) {
  heap_->impl_->pools.free_due();
  // (Also memory for blocks whose own is gone.)
  return heap_->impl_->taking_back([&] { return pool_->restore(blocks); });
}
bool GraphPool::give_back_pages() {
  heap_->impl_->pools.free_due();
  return pool_->give_back_pages();
}

PoolBinding::PoolBinding(PoolBinding&& other) noexcept
    : heap_(std::exchange(other.heap_, nullptr)), id_(other.id_) {}
PoolBinding& PoolBinding::operator=(PoolBinding&& other) noexcept {
  if (this != &other) {
    close();
    heap_ = std::exchange(other.heap_, nullptr);
    id_ = other.id_;
  }
  return *this;
}
PoolBinding::~PoolBinding() { close(); }
std::vector<CaptureAttachment> PoolBinding::attached() const {
  return heap_->impl_->bindings.attached(id_);
}
bool PoolBinding::outlives_capture() const {
  return heap_ != nullptr && heap_->impl_->bindings.is_within(id_);
}
void PoolBinding::close(bool keep, bool origin_lives) {
  if (heap_ != nullptr)
    std::exchange(heap_, nullptr)->impl_->entrance.unbind(id_, keep, origin_lives);
}

}  // namespace weir
