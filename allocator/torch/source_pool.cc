#include "torch/source_pool.h"

#include <utility>

namespace weir::pytorch {
namespace {

// Sizes that the source is asked for: as PyTorch's own pools ask, so that what such an allocator
// expects (2 MiB for small blocks, multiples of 2 MiB) is what it gets.
constexpr Bytes kUnit = 2_MiB;

}  // namespace

void* SourcePool::allocate(Bytes requested, cudaStream_t stream) {
  const Bytes bytes = round_up(requested, kUnit);
  {
    const std::lock_guard lock(mutex_);
    Block* best = nullptr;
    for (auto& [address, block] : blocks_) {
      if (block.live || block.stream != stream || block.bytes < bytes) continue;
      if (best == nullptr || block.bytes < best->bytes) best = &block;
    }
    if (best != nullptr && best->bytes <= bytes + bytes / 8) {
      best->live = true;
      best->requested = requested;
      return best->address;
    }
  }
  void* const address = source_->raw_alloc_with_stream(bytes.count, stream);
  const std::lock_guard lock(mutex_);
  blocks_[address] = {address, bytes, requested, stream, true};
  return address;
}

bool SourcePool::holds(const void* block) const {
  const std::lock_guard lock(mutex_);
  const auto known = blocks_.find(block);
  return known != blocks_.end() && known->second.live;
}

void SourcePool::deallocate(void* block) {
  const std::lock_guard lock(mutex_);
  blocks_.at(block).live = false;
}

void SourcePool::empty() {
  std::vector<void*> idle;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, block] : blocks_) {
      if (!block.live) idle.push_back(block.address);
    }
    for (const void* address : idle) blocks_.erase(address);
  }
  for (void* address : idle) source_->raw_delete(address);
}

std::size_t SourcePool::live() const {
  const std::lock_guard lock(mutex_);
  std::size_t live = 0;
  for (const auto& [address, block] : blocks_) live += block.live ? 1 : 0;
  return live;
}

std::vector<SourcePool::Block> SourcePool::blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<Block> all;
  for (const auto& [address, block] : blocks_) all.push_back(block);
  return all;
}

}  // namespace weir::pytorch
