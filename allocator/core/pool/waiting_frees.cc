// SPDX-License-Identifier: Apache-2.0
#include "core/pool/waiting_frees.h"

#include <memory>

namespace weir {

bool WaitingFrees::contains(Address block) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  return blocks_.contains(block.value);
}

Result<bool> WaitingFrees::free(StreamHeap& heap, Address block) {
  const bool told = pools_.own().timelines().trust() == Trust::told;
  Result<bool> done =
      free_now(heap, block, told ? StreamHeap::Gone::error : StreamHeap::Gone::behind_all);
  if (done) return done;
  const ErrorCode code = done.error().code();
  if (code != ErrorCode::capture && (told || code != ErrorCode::device)) return done;
  add_to_retry(block, heap);
  return true;
}

bool WaitingFrees::free_after_captures(StreamHeap& heap, Address block, bool captured) {
  const std::lock_guard lock(mutex_);
  if (!captured && !captured_uses_.contains(block.value)) return false;
  add(block, {&heap, bindings_.last()});
  return true;
}

void WaitingFrees::add_to_retry(Address block, StreamHeap& heap) {
  const std::lock_guard lock(mutex_);
  add(block, {&heap, 0});
  to_retry_.store(true, std::memory_order_relaxed);
}

void WaitingFrees::add(Address block, Waiting waiting) {
  if (blocks_.empty()) bindings_.hold();
  blocks_[block.value] = waiting;
  count_.store(blocks_.size(), std::memory_order_release);
}

WaitingFrees::Due WaitingFrees::take_due() {
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
  to_retry_.store(false, std::memory_order_relaxed);
  if (!due.empty() && blocks_.empty()) bindings_.let_go();
  return due;
}

void WaitingFrees::free_due() {
  (void)bindings_.end_past();
  free_all(take_due(), StreamHeap::Gone::behind_all);
}

void WaitingFrees::free_all(const Due& due, StreamHeap::Gone gone) {
  for (const auto& [block, waiting] : due) {
    // A fence that record_stream asked for could not be taken now; the program has no block to
    // free again.
    if (!free_now(*waiting.heap, block, gone)) add_to_retry(block, *waiting.heap);
  }
  for (const std::shared_ptr<CapturePool>& pool : pools_.graph_pools()) pool->free_deferred();
}

Result<bool> WaitingFrees::free_now(StreamHeap& heap, Address block, StreamHeap::Gone gone) {
  const std::shared_ptr<CapturePool> pool = pools_.graph_pool_of(heap);
  return pool == nullptr ? heap.deallocate(block, gone) : pool->deallocate(heap, block, gone);
}

Status WaitingFrees::free_after_all_work() {
  if (!has_any_to_retry()) return {};
  free_due();
  if (!has_any_to_retry()) return {};
  // Those that are freed while the host waits are not waited for.
  const Due due = take_due();
  Status waited = pools_.shared().device.synchronize_context();
  free_all(due, waited ? StreamHeap::Gone::after_all : StreamHeap::Gone::behind_all);
  // Where the device has no memory left even to wait, they stay for the next time.
  if (!waited && waited.error().code() == ErrorCode::out_of_memory) return {};
  return waited;
}

void WaitingFrees::forget(std::span<const PlacedBlock> live) {
  const std::lock_guard lock(mutex_);
  if (blocks_.empty()) return;
  for (const PlacedBlock& block : live) blocks_.erase(block.address.value);
  count_.store(blocks_.size(), std::memory_order_release);
  if (blocks_.empty()) bindings_.let_go();
}

void WaitingFrees::note_captured_use(Address block) {
  const std::lock_guard lock(mutex_);
  captured_uses_[block.value] = bindings_.last();
}

}  // namespace weir
