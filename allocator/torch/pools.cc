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
  Sourced& pool = sourced_[id];
  if (pool.memory == nullptr) {
    pool.memory = std::make_shared<SourcePool>(std::move(source));
    ++open_sources_;
  }
  ++pool.uses;
}

void Pools::release(Id id) {
  if (!is_sourced(id)) return check(table_.release(id));
  const std::lock_guard lock(mutex_);
  Sourced& pool = sourced_.at(id);
  if (--pool.uses > 0) return;
  old_sources_.push_back(std::move(pool.memory));
  sourced_.erase(id);
  forget_old_sources();
}

// Those whose last block is gone. With mutex_ held.
void Pools::forget_old_sources() {
  std::erase_if(old_sources_, [&](const std::shared_ptr<SourcePool>& source) {
    if (source->live() > 0) return false;
    --open_sources_;
    return true;
  });
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

void Pools::begin(Id id, Filter filter, Stream current) {
  if (!is_sourced(id)) {
    return check(table_.begin(
        id,
        [filter = std::move(filter)](void* stream) {
          return filter(static_cast<cudaStream_t>(stream));
        },
        current));
  }
  const std::lock_guard lock(mutex_);
  ++sourced_.at(id).uses;
  filters_.emplace_back(id, std::move(filter));
}

void Pools::end(Id id) {
  if (!is_sourced(id)) return check(table_.end(id));
  const std::lock_guard lock(mutex_);
  const auto last = std::find_if(filters_.rbegin(), filters_.rend(),
                                 [&](const auto& each) { return each.first == id; });
  if (last != filters_.rend()) filters_.erase(std::next(last).base());
}

SourcePool* Pools::source_for(cudaStream_t stream) const {
  if (!has_sources()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto takes = std::find_if(filters_.rbegin(), filters_.rend(),
                                  [&](const auto& each) { return each.second(stream); });
  if (takes == filters_.rend()) return nullptr;
  const auto pool = sourced_.find(takes->first);
  return pool == sourced_.end() ? nullptr : pool->second.memory.get();
}

SourcePool* Pools::source_of(const void* block) const {
  if (!has_sources()) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : sourced_) {
    if (pool.memory->holds(block)) return pool.memory.get();
  }
  for (const std::shared_ptr<SourcePool>& source : old_sources_) {
    if (source->holds(block)) return source.get();
  }
  return nullptr;
}

void* Pools::allocate_from_reserve(Bytes bytes, Stream stream) {
  if (void* const block = table_.allocate_from_reserve(bytes, stream)) return block;
  std::shared_ptr<SourcePool> reserve;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, pool] : sourced_) {
      if (pool.use_on_oom) reserve = pool.memory;
    }
  }
  return reserve == nullptr ? nullptr
                            : reserve->allocate(bytes, static_cast<cudaStream_t>(stream.handle));
}

void Pools::empty(Id id) {
  if (!is_sourced(id)) return table_.empty(id);
  const std::lock_guard lock(mutex_);
  sourced_.at(id).memory->empty();
}

void Pools::empty_all_sources() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : sourced_) pool.memory->empty();
  forget_old_sources();
}

std::vector<std::pair<Pools::Id, std::shared_ptr<const SourcePool>>> Pools::sources() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Id, std::shared_ptr<const SourcePool>>> all;
  for (const auto& [id, pool] : sourced_) all.emplace_back(id, pool.memory);
  for (const std::shared_ptr<SourcePool>& source : old_sources_) all.emplace_back(Id{0, 0}, source);
  return all;
}

Bytes Pools::held_by_sources() const {
  Bytes held;
  for (const auto& [id, source] : sources()) {
    for (const SourcePool::Block& block : source->blocks()) held += block.bytes;
  }
  return held;
}

std::vector<PlacedBlock> Pools::blocks(Id id) const {
  return is_sourced(id) ? std::vector<PlacedBlock>{} : check(table_.blocks(id));
}

void Pools::restore(Id id, std::span<const PlacedBlock> blocks) {
  if (!is_sourced(id)) check(table_.restore(id, blocks));
}

}  // namespace weir::pytorch
