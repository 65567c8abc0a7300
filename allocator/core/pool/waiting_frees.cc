// SPDX-License-Identifier: Apache-2.0
#include "core/pool/waiting_frees.h"

namespace weir {

void WaitingFrees::add(StreamHeap& heap, Address block, std::uint64_t last_binding) {
  const std::lock_guard lock(mutex_);
  if (rows_.empty()) registry_.hold_fast_paths();
  if (rows_.insert_or_assign(block.value, Row{&heap, last_binding}).second) {
    count_.fetch_add(1, std::memory_order_release);
  }
  if (last_binding == 0) to_retry_.store(true, std::memory_order_relaxed);
}

bool WaitingFrees::contains(Address block) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  return rows_.contains(block.value);
}

void WaitingFrees::note_taken(std::size_t count) {
  count_.fetch_sub(count, std::memory_order_release);
  if (count > 0 && rows_.empty()) registry_.let_go_of_fast_paths();
}

void WaitingFrees::forget(Address block) {
  const std::lock_guard lock(mutex_);
  note_taken(rows_.erase(block.value));
}

WaitingFrees::Blocks WaitingFrees::take_due(std::uint64_t oldest_capture) {
  const std::lock_guard lock(mutex_);
  std::erase_if(captured_uses_, [&](const auto& use) { return use.second < oldest_capture; });
  to_retry_.store(false, std::memory_order_relaxed);
  Blocks due;
  std::erase_if(rows_, [&](const auto& row) {
    if (row.second.last_binding >= oldest_capture) return false;
    due.emplace_back(Address{row.first}, row.second.heap);
    return true;
  });
  note_taken(due.size());
  return due;
}

void WaitingFrees::note_captured_use(Address block, std::uint64_t last_binding) {
  const std::lock_guard lock(mutex_);
  captured_uses_[block.value] = last_binding;
}

bool WaitingFrees::has_captured_use(Address block) const {
  const std::lock_guard lock(mutex_);
  return captured_uses_.contains(block.value);
}

}  // namespace weir
