// SPDX-License-Identifier: Apache-2.0
#include "core/pool/waiting_frees.h"

namespace weir {

void WaitingFrees::add(Reason reason, StreamHeap& heap, Address block, std::uint64_t last_binding) {
  const std::lock_guard lock(mutex_);
  Rows& rows = rows_[reason == Reason::own_capture ? heap.pool() : 0];
  if (reason != Reason::own_capture && rows.empty()) registry_.hold_fast_paths();
  if (rows.insert_or_assign(block.value, Row{&heap, last_binding}).second) {
    count_.fetch_add(1, std::memory_order_release);
  }
  if (reason == Reason::not_recorded) to_retry_.store(true, std::memory_order_relaxed);
}

bool WaitingFrees::contains(Address block, std::uint64_t pool) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  const auto rows = rows_.find(pool);
  return rows != rows_.end() && rows->second.contains(block.value);
}

WaitingFrees::Blocks WaitingFrees::blocks(std::uint64_t pool) const {
  Blocks blocks;
  if (count_.load(std::memory_order_acquire) == 0) return blocks;
  const std::lock_guard lock(mutex_);
  const auto rows = rows_.find(pool);
  if (rows == rows_.end()) return blocks;
  for (const auto& [block, row] : rows->second) blocks.emplace_back(Address{block}, row.heap);
  return blocks;
}

template <class Due>
WaitingFrees::Blocks WaitingFrees::take_if(std::uint64_t pool, Due&& due) {
  Blocks taken;
  const auto rows = rows_.find(pool);
  if (rows == rows_.end()) return taken;
  std::erase_if(rows->second, [&](const auto& row) {
    if (!due(row.second)) return false;
    taken.emplace_back(Address{row.first}, row.second.heap);
    return true;
  });
  note_taken(rows, taken.size());
  return taken;
}

void WaitingFrees::note_taken(RowsByPool::iterator rows, std::size_t count) {
  count_.fetch_sub(count, std::memory_order_release);
  if (!rows->second.empty()) return;
  if (rows->first == 0) registry_.let_go_of_fast_paths();
  rows_.erase(rows);
}

bool WaitingFrees::forget(Address block, std::uint64_t pool) {
  const std::lock_guard lock(mutex_);
  const auto rows = rows_.find(pool);
  if (rows == rows_.end() || rows->second.erase(block.value) == 0) return false;
  note_taken(rows, 1);
  return true;
}

WaitingFrees::Blocks WaitingFrees::take(std::uint64_t pool) {
  const std::lock_guard lock(mutex_);
  return take_if(pool, [](const Row&) { return true; });
}

WaitingFrees::Blocks WaitingFrees::take_due(std::uint64_t oldest_capture) {
  const std::lock_guard lock(mutex_);
  std::erase_if(captured_uses_, [&](const auto& use) { return use.second < oldest_capture; });
  to_retry_.store(false, std::memory_order_relaxed);
  return take_if(0, [&](const Row& row) { return row.last_binding < oldest_capture; });
}

std::vector<std::uint64_t> WaitingFrees::graph_pools() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> pools;
  for (const auto& [pool, rows] : rows_) {
    if (pool != 0) pools.push_back(pool);
  }
  return pools;
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
