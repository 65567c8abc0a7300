// SPDX-License-Identifier: Apache-2.0
#include "core/device_heap/deferred_frees.h"

namespace weir {

bool DeferredFrees::look_up(Address block) const {
  const std::lock_guard lock(mutex_);
  return blocks_.contains(block.value);
}

bool DeferredFrees::add_if_captured(Address block, StreamHeap& heap, bool captured) {
  const std::lock_guard lock(mutex_);
  if (!captured && !captured_uses_.contains(block.value)) return false;
  add_locked(block, {&heap, bindings_.last()});
  return true;
}

void DeferredFrees::add_to_retry(Address block, StreamHeap& heap) {
  const std::lock_guard lock(mutex_);
  add_locked(block, {&heap, 0});
  retries_.store(true, std::memory_order_relaxed);
}

void DeferredFrees::add_locked(Address block, Deferred deferred) {
  if (blocks_.empty()) bindings_.hold();
  blocks_[block.value] = deferred;
  count_.store(blocks_.size(), std::memory_order_release);
}

DeferredFrees::Due DeferredFrees::take_due() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t oldest = bindings_.oldest_capture();
  std::erase_if(captured_uses_, [&](const auto& use) { return use.second < oldest; });
  Due due;
  std::erase_if(blocks_, [&](const auto& waiting) {
    if (waiting.second.last_binding >= oldest) return false;
    due.emplace_back(Address{waiting.first}, waiting.second);
    return true;
  });
  count_.store(blocks_.size(), std::memory_order_release);
  retries_.store(false, std::memory_order_relaxed);
  if (!due.empty() && blocks_.empty()) bindings_.let_go();
  return due;
}

void DeferredFrees::forget(std::span<const PlacedBlock> live) {
  const std::lock_guard lock(mutex_);
  if (blocks_.empty()) return;
  for (const PlacedBlock& block : live) blocks_.erase(block.address.value);
  count_.store(blocks_.size(), std::memory_order_release);
  if (blocks_.empty()) bindings_.let_go();
}

void DeferredFrees::note_captured_use(Address block) {
  const std::lock_guard lock(mutex_);
  captured_uses_[block.value] = bindings_.last();
}

}  // namespace weir
