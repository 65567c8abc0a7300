// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/native_model.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace weir::contract {
namespace {

constexpr Bytes kSmall = 1_MiB;
constexpr Bytes kSmallSegment = 2_MiB;
constexpr Bytes kLargeSegment = 20_MiB;
constexpr Bytes kAsIs = 10_MiB;  // requests from here on have a segment of their own size

Bytes segment_size(Bytes bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes < kAsIs ? kLargeSegment : round_up(bytes, 2_MiB);
}

Error unknown(const char* call) {
  return {ErrorCode::unknown_pointer, std::string(call) + ": invalid device pointer"};
}

}  // namespace

bool NativeModel::ByFit::operator()(const Block* a, const Block* b) const {
  return std::tie(a->stream, a->bytes, a->address) < std::tie(b->stream, b->bytes, b->address);
}

NativeModel::~NativeModel() = default;

Result<Address> NativeModel::cuda_malloc(Bytes bytes) {
  const Bytes size = round_up(bytes, device_.granularity());
  Result<PhysicalHandle> handle = device_.create(size);
  if (!handle) return std::move(handle).error();
  Result<Address> address = device_.reserve(size, device_.granularity());
  if (!address) return std::move(address).error();
  if (Status mapped = device_.map(*address, size, *handle); !mapped) return mapped.error();
  if (Status usable = device_.set_access(*address, size); !usable) return usable.error();
  segments_[*address] = {*handle, size};
  return address;
}

void NativeModel::cuda_free(Address address) {
  const Segment segment = segments_.at(address);
  if (defect_ != NativeDefect::frees_at_once) device_.finish();
  (void)device_.unmap(address, segment.bytes);
  (void)device_.release(segment.handle);
  (void)device_.unreserve(address, segment.bytes);
  segments_.erase(address);
}

NativeModel::Pool& NativeModel::pool_for(Stream stream) {
  if (defect_ == NativeDefect::serves_other_pools) return default_pool_;
  for (auto binding = bindings_.rbegin(); binding != bindings_.rend(); ++binding) {
    if (binding->takes(stream.handle)) return *pools_.at(binding->pool);
  }
  return default_pool_;
}

NativeModel::Block* NativeModel::find_free(Pool& pool, bool small, std::uint64_t stream,
                                           Bytes bytes) {
  std::set<Block*, ByFit>& free = small ? pool.small : pool.large;
  Block key;
  key.stream = stream;
  key.bytes = bytes;
  const auto best = free.lower_bound(&key);
  if (best == free.end() || (*best)->stream != stream) return nullptr;
  Block* const found = *best;
  free.erase(best);
  return found;
}

void NativeModel::split(Block& block, Bytes bytes) {
  const Bytes rest = block.bytes - bytes;
  if (block.small ? rest >= kGrain : rest > kSmall) (void)cut(block, bytes);
}

NativeModel::Block& NativeModel::cut(Block& block, Bytes bytes) {
  auto made = std::make_unique<Block>();
  made->address = block.address + bytes;
  made->bytes = block.bytes - bytes;
  made->stream = block.stream;
  made->pool = block.pool;
  made->small = block.small;
  made->before = &block;
  made->after = block.after;
  if (made->after != nullptr) made->after->before = made.get();
  block.after = made.get();
  block.bytes = bytes;
  (block.small ? block.pool->small : block.pool->large).insert(made.get());
  Block& rest = *made;
  blocks_[made->address.pointer()] = std::move(made);
  return rest;
}

Result<void*> NativeModel::allocate(Bytes asked, StreamName name) {
  if (!caching_) {
    Result<Address> address = cuda_malloc(asked);
    if (!address) return std::move(address).error();
    uncached_.insert(address->pointer());
    return address->pointer();
  }
  if (defect_ == NativeDefect::orders_streams) wait_for_the_last(name.stream);
  if (!defers()) process_events();
  const Bytes bytes = round_up(asked, kGrain);
  const bool small = bytes <= kSmall;
  const std::uint64_t stream = owner(name.stream);
  Pool& pool = pool_for(name.stream);
  Block* block = find_free(pool, small, stream, bytes);
  if (block == nullptr) {
    const Bytes size = segment_size(bytes);
    const auto has_room = [&] { return limit_ == 0_B || reserved_ + size <= limit_; };
    Result<Address> address{Address{}};
    if (has_room()) address = cuda_malloc(size);
    if (!has_room() || !address) {
      release_cached();
      if (!has_room()) return Error(ErrorCode::out_of_memory, "CUDA out of memory");
      address = cuda_malloc(size);
    }
    if (!address) return std::move(address).error();
    reserved_ += size;
    auto made = std::make_unique<Block>();
    made->address = *address;
    made->bytes = size;
    made->stream = stream;
    made->pool = &pool;
    made->small = small;
    block = made.get();
    blocks_[made->address.pointer()] = std::move(made);
  }
  split(*block, bytes);
  block->live = true;
  return block->address.pointer();
}

Status NativeModel::deallocate(void* pointer) {
  if (uncached_.erase(pointer) != 0) {
    cuda_free(Address::of(pointer));
    return {};
  }
  const auto known = blocks_.find(pointer);
  if (known == blocks_.end() || !known->second->live) return unknown("free");
  if (defect_ == NativeDefect::keeps_dropped && !bindings_.empty()) return {};
  Block& block = *known->second;
  block.live = false;
  if (block.recorded.empty()) {
    free_block(block);
  } else if (defers()) {
    deferred_.push_back(&block);
  } else {
    insert_events(block);
  }
  return {};
}

bool NativeModel::take_free(Block* block) {
  if (block == nullptr || block->live || block->events > 0 || !block->recorded.empty()) {
    return false;
  }
  (block->small ? block->pool->small : block->pool->large).erase(block);
  return true;
}

// The upper one is its neighbour, and is gone then.
void NativeModel::absorb(Block& lower, Block& upper) {
  lower.bytes += upper.bytes;
  lower.after = upper.after;
  if (lower.after != nullptr) lower.after->before = &lower;
  blocks_.erase(upper.address.pointer());
}

void NativeModel::free_block(Block& block) {
  Block* merged = &block;
  if (take_free(block.before)) {
    merged = block.before;
    absorb(*merged, block);
  }
  if (take_free(merged->after)) absorb(*merged, *merged->after);
  (merged->small ? merged->pool->small : merged->pool->large).insert(merged);
}

Status NativeModel::record_stream(void* pointer, StreamName user) {
  const auto known = blocks_.find(pointer);
  if (known == blocks_.end() || !known->second->live) return unknown("recordStream");
  Block& block = *known->second;
  if (owner(user.stream) == block.stream || defect_ == NativeDefect::forgets_records) return {};
  if (std::find(block.recorded.begin(), block.recorded.end(), user.stream) ==
      block.recorded.end()) {
    block.recorded.push_back(user.stream);
  }
  return {};
}

void NativeModel::wait_for_the_last(Stream stream) {
  const Stream last = std::exchange(asked_last_, stream);
  const auto captured = [&](Stream each) {
    const Result<CaptureInfo> info = device_.capture_info(each);
    return !info || info->id != 0;  // or is gone
  };
  if (last.id == 0 || last == stream || captured(last) || captured(stream)) return;
  const EventHandle event = device_.create_event().value();
  if (device_.record(event, last)) (void)device_.wait(stream, event);
  (void)device_.destroy_event(event);
}

void NativeModel::insert_events(Block& block) {
  for (const Stream stream : std::exchange(block.recorded, {})) {
    const EventHandle event = device_.create_event().value();
    (void)device_.record(event, stream);
    ++block.events;
    events_.emplace_back(event, &block);
  }
}

void NativeModel::process_events() {
  for (Block* const block : std::exchange(deferred_, {})) insert_events(*block);
  for (auto each = events_.begin(); each != events_.end();) {
    const Result<bool> done = device_.query(each->first);
    if (!done || !*done) {
      ++each;
      continue;
    }
    (void)device_.destroy_event(each->first);
    Block& block = *each->second;
    each = events_.erase(each);
    if (--block.events == 0) free_block(block);
  }
}

void NativeModel::wait_for_events() {
  for (Block* const block : std::exchange(deferred_, {})) insert_events(*block);
  for (const auto& [event, block] : std::exchange(events_, {})) {
    (void)device_.synchronize(event);
    (void)device_.destroy_event(event);
    if (--block->events == 0) free_block(*block);
  }
}

void NativeModel::release_blocks(std::set<Block*, ByFit>& blocks) {
  for (auto each = blocks.begin(); each != blocks.end();) {
    Block* const block = *each++;
    if (block->before != nullptr || block->after != nullptr) continue;
    blocks.erase(block);
    reserved_ -= block->bytes;
    cuda_free(block->address);
    blocks_.erase(block->address.pointer());
  }
}

void NativeModel::release_cached() {
  if (bindings_.empty()) {
    wait_for_events();
    release_blocks(default_pool_.large);
    release_blocks(default_pool_.small);
  }
  for (const auto& [id, pool] : pools_) {
    if (pool->uses > 0) continue;
    release_blocks(pool->large);
    release_blocks(pool->small);
  }
}

Status NativeModel::empty_cache() {
  release_cached();
  return {};
}

Status NativeModel::set_limit(Bytes limit) {
  limit_ = limit;
  return {};
}

Status NativeModel::retain_pool(PoolId id) {
  std::unique_ptr<Pool>& pool = pools_[id];
  if (pool == nullptr) pool = std::make_unique<Pool>();
  pool->id = id;
  ++pool->uses;
  return {};
}

Status NativeModel::release_pool(PoolId id) {
  --pools_.at(id)->uses;
  return {};
}

Status NativeModel::begin_pool(PoolId id, PoolFilter filter, StreamName) {
  (void)retain_pool(id);
  bindings_.push_back({id, std::move(filter)});
  return {};
}

Status NativeModel::end_pool(PoolId id, StreamName) {
  std::erase_if(bindings_, [&](const Binding& binding) { return binding.pool == id; });
  return {};
}

Status NativeModel::save_pool(PoolId id) {
  Pool& pool = *pools_.at(id);
  pool.saved.clear();
  for (const auto& [pointer, block] : blocks_) {
    if (block->pool == &pool && block->live) {
      pool.saved.push_back({block->address, block->bytes, block->small});
    }
  }
  return {};
}

Status NativeModel::restore_pool(PoolId id) {
  Pool& pool = *pools_.at(id);
  std::vector<Block*> live;
  for (const auto& [pointer, block] : blocks_) {
    if (block->pool == &pool && block->live) live.push_back(block.get());
  }
  for (Block* const block : live) {
    block->live = false;
    free_block(*block);
  }
  for (const Saved& saved : pool.saved) {
    std::set<Block*, ByFit>& free = saved.small ? pool.small : pool.large;
    const auto holds = [&](const Block* block) {
      return block->address <= saved.address &&
             saved.address + saved.bytes <= block->address + block->bytes;
    };
    const auto found = std::find_if(free.begin(), free.end(), holds);
    if (found == free.end()) {
      return Error(ErrorCode::invalid_argument, "the saved block's memory is not there");
    }
    Block* block = *found;
    free.erase(found);
    if (const Bytes ahead = saved.address - block->address; ahead > 0_B) {
      Block& rest = cut(*block, ahead);
      free.insert(block);
      free.erase(&rest);
      block = &rest;
    }
    if (block->bytes > saved.bytes) (void)cut(*block, saved.bytes);
    block->live = true;
  }
  return {};
}

// Those that wait for events are no longer the program's.
Bytes NativeModel::live_bytes() const {
  Bytes live;
  for (const auto& [pointer, block] : blocks_) {
    if (block->live) live += block->bytes;
  }
  return live;
}

PoolId NativeModel::pool_of(void* pointer) const {
  const auto known = blocks_.find(pointer);
  return known == blocks_.end() ? PoolId{0, 0} : known->second->pool->id;
}

}  // namespace weir::contract
