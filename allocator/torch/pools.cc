// SPDX-License-Identifier: Apache-2.0
#include "torch/pools.h"

#include <algorithm>

#include "torch/errors.h"

namespace weir::pytorch {

bool Pools::is_sourced(Id id) const {
  const std::lock_guard lock(mutex_);
  return sourced_.contains(id);
}

void Pools::retain(Id id, std::shared_ptr<CudaAllocator> source) {
  if (source == nullptr && !is_sourced(id)) return table_.retain(id);
  const std::lock_guard lock(mutex_);
  Pool& pool = sourced_[id];
  if (pool.memory == nullptr) {
    pool.memory = std::make_shared<SegmentPool>(
        std::move(source), device_,
        [this, id](const SegmentPool::Segment& segment, SegmentPool::Change change) {
          listener_(id, segment, change);
        });
    open_sources_.store(sourced_.size(), std::memory_order_relaxed);
  }
  ++pool.uses;
}

void Pools::release(Id id) {
  if (!is_sourced(id)) return check(table_.release(id));
  {
    const std::lock_guard lock(mutex_);
    Pool& pool = sourced_.at(id);
    if (pool.uses > 0) --pool.uses;
  }
  empty(id);  // if that was the last
}

int Pools::uses(Id id) const {
  const std::lock_guard lock(mutex_);
  const auto known = sourced_.find(id);
  return known == sourced_.end() ? table_.uses(id) : known->second.uses;
}

void Pools::set_use_on_oom(Id id, bool use) {
  if (!is_sourced(id)) return table_.set_use_on_oom(id, use);
  const std::lock_guard lock(mutex_);
  sourced_.at(id).use_on_oom = use;
}

void Pools::make_plain(Id id) {
  TORCH_CHECK(!is_sourced(id), "weir: the memory of pool (", id.first, ", ", id.second,
              ") is another allocator's: it can't be made plain");
  check(table_.make_plain(id));
}

void Pools::set_no_split(Id id) {
  const std::lock_guard lock(mutex_);
  const auto known = sourced_.find(id);
  if (known != sourced_.end()) known->second.memory->set_no_split();
}

void Pools::begin(Id id, Filter filter, Stream current) {
  if (!is_sourced(id)) {
    check(table_.begin(
        id, [filter](void* stream) { return filter(static_cast<cudaStream_t>(stream)); }, current));
  }
  const std::lock_guard lock(mutex_);
  const auto known = sourced_.find(id);
  if (known != sourced_.end()) ++known->second.uses;
  bindings_.push_back({id, std::move(filter)});
}

void Pools::end(Id id, std::optional<Stream> current) {
  {
    const std::lock_guard lock(mutex_);
    const auto last = latest_of(bindings_, id);
    if (last != bindings_.rend()) bindings_.erase(std::next(last).base());
  }
  if (!is_sourced(id)) check(table_.end(id, current));
}

void Pools::close_failed(Stream current) {
  for (const PoolId& id : table_.close_failed(current)) {
    const std::lock_guard lock(mutex_);
    const auto last = latest_of(bindings_, Id(id));
    if (last != bindings_.rend()) bindings_.erase(std::next(last).base());
  }
}

std::shared_ptr<SegmentPool> Pools::source_for(cudaStream_t stream) const {
  if (!has_sources()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto takes = std::find_if(bindings_.rbegin(), bindings_.rend(),
                                  [&](const Binding& each) { return each.filter(stream); });
  if (takes == bindings_.rend()) return nullptr;
  const auto pool = sourced_.find(takes->id);
  return pool == sourced_.end() ? nullptr : pool->second.memory;
}

std::optional<Pools::SourcedBlock> Pools::find(const void* pointer) const {
  if (!has_sources()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : sourced_) {
    const std::optional<SegmentPool::Found> found = pool.memory->find(pointer);
    if (found) return SourcedBlock{*found, {id, pool.memory}};
  }
  return std::nullopt;
}

void* Pools::take_from_reserve(Bytes bytes, Stream stream) {
  if (void* const block = table_.take_from_reserve(bytes, stream)) return block;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : sourced_) {
    if (!pool.use_on_oom) continue;
    if (void* const block = pool.memory->take_free(bytes, stream)) return block;
  }
  return nullptr;
}

void Pools::empty(Id id) {
  std::shared_ptr<SegmentPool> memory;
  {
    const std::lock_guard lock(mutex_);
    const auto known = sourced_.find(id);
    if (known != sourced_.end()) {
      if (known->second.uses > 0) return;
      memory = known->second.memory;
    }
  }
  if (memory == nullptr) return table_.empty(id);
  memory->empty();
  if (memory->has_segments()) return;
  const std::lock_guard lock(mutex_);
  const auto known = sourced_.find(id);
  if (known == sourced_.end() || known->second.uses > 0 || memory->has_segments()) return;
  // Somebody else has it: a request that is under way may bring a segment yet.
  if (memory.use_count() > 2) return;
  sourced_.erase(known);
  open_sources_.store(sourced_.size(), std::memory_order_relaxed);
}

void Pools::empty_unused_sources() {
  std::vector<Id> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, pool] : sourced_) all.push_back(id);
  }
  for (const Id& id : all) empty(id);
}

std::vector<Pools::Sourced> Pools::sources() const {
  const std::lock_guard lock(mutex_);
  std::vector<Sourced> all;
  for (const auto& [id, pool] : sourced_) all.push_back({id, pool.memory});
  return all;
}

std::vector<PlacedBlock> Pools::blocks(Id id) const {
  return is_sourced(id) ? std::vector<PlacedBlock>{} : check(table_.blocks(id));
}

void Pools::restore(Id id, std::span<const PlacedBlock> blocks) {
  if (!is_sourced(id)) check(table_.restore(id, blocks));
}

}  // namespace weir::pytorch
