// SPDX-License-Identifier: Apache-2.0
#include "torch/pool_table.h"

#include <algorithm>
#include <set>

namespace weir::pytorch {

Error PoolTable::none(PoolId id, const char* call) {
  return {ErrorCode::invalid_argument,
          std::string(call) + ": there is no memory pool (" + std::to_string(id.first) + ", " +
              std::to_string(id.second) + "): it was released, or never begun"};
}

PoolTable::Pool& PoolTable::open(PoolId id) {
  Pool& pool = pools_[id];
  if (pool.graphs == nullptr) {
    GraphPoolOptions options{.tag = new_pools_tag()};
    if (pool.plain) options.memory = MemoryKind::plain;
    pool.graphs = std::make_shared<GraphPool>(heap_, std::move(options));
    const std::lock_guard lock(ids_mutex_);
    ids_[pool.graphs->id()] = id;
  }
  return pool;
}

void PoolTable::retain(PoolId id) {
  const std::lock_guard lock(mutex_);
  ++open(id).uses;
}

std::shared_ptr<GraphPool> PoolTable::find(PoolId id) const {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(id);
  return known == pools_.end() ? nullptr : known->second.graphs;
}

Status PoolTable::release(PoolId id) {
  Pool gone;
  {
    const std::lock_guard lock(mutex_);
    const auto known = pools_.find(id);
    if (known == pools_.end()) return none(id, "releasePool");
    if (--known->second.uses > 0) return {};
    gone = std::move(known->second);
    pools_.erase(known);
  }
  // (The pool itself knows how many graphs it has: it lets go of no more.)
  for (; gone.captures > 0; --gone.captures) gone.graphs->release_graph();
  gone.graphs.reset();
  forget_gone_pools();
  return {};
}

// Seldom: to know what is left of all pools takes a snapshot. No pool is opened meanwhile.
void PoolTable::forget_gone_pools() {
  const std::lock_guard lock(mutex_);
  {
    const std::lock_guard ids(ids_mutex_);
    if (ids_.size() < forgets_at_) return;
  }
  std::set<std::uint64_t> left;
  for (const HeapInfo& heap : heap_.snapshot().heaps) left.insert(heap.pool);
  for (const auto& [id, pool] : pools_) left.insert(pool.graphs->id());
  const std::lock_guard ids(ids_mutex_);
  std::erase_if(ids_, [&](const auto& each) { return !left.contains(each.first); });
  forgets_at_ = 64 + 2 * ids_.size();
}

int PoolTable::uses(PoolId id) const {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(id);
  return known == pools_.end() ? 0 : known->second.uses;
}

Status PoolTable::make_plain(PoolId id) {
  const std::lock_guard lock(mutex_);
  Pool& pool = open(id);
  if (pool.plain) return {};
  const bool bound = std::any_of(bindings_.begin(), bindings_.end(),
                                 [&](const Binding& each) { return each.id == id; });
  if (bound || pool.graphs->statistics().reserved_bytes != 0_B) {
    return Error(ErrorCode::invalid_argument,
                 "memory pool (" + std::to_string(id.first) + ", " + std::to_string(id.second) +
                     ") has been used already: make it plain before anything is allocated in it");
  }
  {
    const std::lock_guard ids(ids_mutex_);
    ids_.erase(pool.graphs->id());
  }
  pool.graphs.reset();
  pool.plain = true;
  (void)open(id);
  return {};
}

void PoolTable::set_use_on_oom(PoolId id, bool use) {
  const std::lock_guard lock(mutex_);
  open(id).use_on_oom = use;
}

Status PoolTable::begin(PoolId id, Filter filter, Stream current) {
  Result<CaptureInfo> info = device_.capture_info(current);
  if (!info) return std::move(info).error();
  if (graphs_leak_) heap_.assume_graphs_leak();
  const bool captures = !filter(current.handle) || info->status != CaptureInfo::Status::none;
  std::shared_ptr<GraphPool> graphs;
  {
    const std::lock_guard lock(mutex_);
    Pool& pool = open(id);
    ++pool.uses;
    graphs = pool.graphs;
  }
  const StreamFilter takes = [filter = std::move(filter)](Stream stream) {
    return filter(stream.handle);
  };
  // No capture begins on the default stream: it stands for one that is not known.
  const std::optional<Stream> origin =
      current.handle == nullptr ? std::nullopt : std::optional(current);
  Result<PoolBinding> binding = captures ? graphs->capture(takes, origin) : graphs->warm_up(takes);
  if (!binding) {
    (void)release(id);
    return std::move(binding).error();
  }
  const std::lock_guard lock(mutex_);
  bindings_.push_back({id, *std::move(binding), captures, current.id});
  return {};
}

Status PoolTable::end(PoolId id, std::optional<Stream> current) {
  PoolBinding ended;
  bool origin_lives = false;
  {
    const std::lock_guard lock(mutex_);
    const auto binding = latest_of(bindings_, id);
    if (binding == bindings_.rend()) return none(id, "endAllocateToPool");
    ended = std::move(binding->binding);
    origin_lives = current && current->id == binding->stream;
    const auto pool = pools_.find(id);
    if (binding->captures && pool != pools_.end()) ++pool->second.captures;
    bindings_.erase(std::next(binding).base());
  }
  // Whether the capture made a graph is PyTorch's to know: it releases the pool if not.
  ended.close(/*keep=*/true, origin_lives);
  return {};
}

std::vector<PoolId> PoolTable::close_failed(Stream current) {
  const Result<CaptureInfo::Status> status = device_.capture_status(current);
  if (!status || *status != CaptureInfo::Status::none) return {};
  std::vector<Binding> failed;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(bindings_, [&, me = std::this_thread::get_id()](Binding& each) {
      if (!each.captures || each.stream != current.id || each.begun_by != me) return false;
      if (each.binding.outlives_capture()) return false;  // a MemPool's: it is left later
      failed.push_back(std::move(each));
      return true;
    });
  }
  std::vector<PoolId> pools;
  for (Binding& each : failed) {
    each.binding.close(/*keep=*/false);
    (void)release(each.id);
    pools.push_back(each.id);
  }
  return pools;
}

void* PoolTable::take_from_reserve(Bytes bytes, Stream stream) {
  std::vector<std::shared_ptr<GraphPool>> reserves;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, pool] : pools_) {
      if (pool.use_on_oom) reserves.push_back(pool.graphs);
    }
  }
  for (const std::shared_ptr<GraphPool>& reserve : reserves) {
    if (Result<void*> block = reserve->take_free(bytes, stream)) return *block;
  }
  return nullptr;
}

void PoolTable::empty(PoolId id) {
  if (const std::shared_ptr<GraphPool> pool = find(id)) (void)pool->give_back_pages();
}

PoolId PoolTable::id_of(std::uint64_t graph_pool) const {
  const std::lock_guard lock(ids_mutex_);
  const auto known = ids_.find(graph_pool);
  return known == ids_.end() ? PoolId{0, 0} : known->second;
}

Result<std::vector<PlacedBlock>> PoolTable::blocks(PoolId id) const {
  const std::shared_ptr<GraphPool> pool = find(id);
  if (pool == nullptr) return none(id, "getCheckpointState");
  return pool->blocks();
}

Status PoolTable::restore(PoolId id, std::span<const PlacedBlock> blocks) {
  const std::shared_ptr<GraphPool> pool = find(id);
  if (pool == nullptr) return none(id, "setCheckpointPoolState");
  return pool->restore(blocks);
}

}  // namespace weir::pytorch
