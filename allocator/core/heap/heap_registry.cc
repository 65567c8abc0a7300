// SPDX-License-Identifier: Apache-2.0
#include "core/heap/heap_registry.h"

#include <algorithm>

namespace weir {

StreamHeap& HeapRegistry::add(const StreamHeap::PoolParts& parts, Stream stream,
                              Observer& observer) {
  const std::unique_lock lock(mutex_);
  const MemoryKind memory = parts.pages->memory();
  std::vector<StreamHeap*>& of_no_pool = spare(memory);
  if (of_no_pool.empty()) {
    const HeapId id{static_cast<std::uint32_t>(heaps_.size())};
    heaps_.push_back(std::make_unique<StreamHeap>(id, stream.id, memory, observer));
    of_no_pool.push_back(heaps_.back().get());
  }
  StreamHeap& heap = *of_no_pool.back();
  of_no_pool.pop_back();
  heap.allow_fast_paths(!are_fast_paths_held());
  (void)heap.adopt(parts, stream);
  return heap;
}

void HeapRegistry::take_back(std::span<StreamHeap* const> heaps) {
  const std::unique_lock lock(mutex_);
  for (StreamHeap* const heap : heaps) {
    heap->leave_pool();
    spare(heap->memory()).push_back(heap);
  }
}

void HeapRegistry::clear() {
  const std::unique_lock lock(mutex_);
  // The latest first: so DeviceFold finds each at once.
  while (!heaps_.empty()) heaps_.pop_back();
}

void HeapRegistry::hold_fast_paths() {
  const std::unique_lock lock(mutex_);
  if (holds_.fetch_add(1, std::memory_order_release) == 0) allow_fast_paths(false);
}

void HeapRegistry::let_go_of_fast_paths() {
  const std::unique_lock lock(mutex_);
  if (holds_.fetch_sub(1, std::memory_order_release) == 1) allow_fast_paths(true);
}

void HeapRegistry::allow_fast_paths(bool allowed) {
  for (const auto& heap : heaps_) {
    if (heap->pool() == 0) heap->allow_fast_paths(allowed);
  }
}

bool HeapRegistry::give_back_cached() const {
  const std::shared_lock lock(mutex_);
  bool any = false;
  for (const auto& heap : heaps_) any = heap->give_back_cached() || any;
  return any;
}

std::vector<StreamHeap*> HeapRegistry::lock_order() const {
  std::vector<StreamHeap*> heaps;
  for (const auto& heap : heaps_) heaps.push_back(heap.get());
  std::stable_partition(heaps.begin(), heaps.end(),
                        [](const StreamHeap* heap) { return heap->pool() != 0; });
  return heaps;
}

}  // namespace weir
