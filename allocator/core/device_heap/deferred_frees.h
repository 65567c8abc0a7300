// SPDX-License-Identifier: Apache-2.0
// Blocks of the device heap that the program has freed and that can't go back yet: a capture may
// use them, or what uses them could not be recorded. While there are any, the fast paths are
// closed.
//
// Threads: self-synchronised by one lock, taken before PoolBindings'.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/device_heap/pool_bindings.h"
#include "core/heap/stream_heap.h"
#include "weir/heap_types.h"

namespace weir {

class DeferredFrees {
 public:
  struct Deferred {
    StreamHeap* heap = nullptr;
    std::uint64_t last_binding = 0;  // that was open, or was before; 0: it is tried again and again
  };
  using Due = std::vector<std::pair<Address, Deferred>>;

  explicit DeferredFrees(PoolBindings& bindings) : bindings_(bindings) {}

  bool contains(Address block) const {
    return count_.load(std::memory_order_acquire) != 0 && look_up(block);
  }
  // Until every capture that is bound now has ended, if `captured` or if a captured stream may use
  // the block. Returns whether so.
  bool add_if_captured(Address block, StreamHeap& heap, bool captured);
  // Until an attempt to free it succeeds.
  void add_to_retry(Address block, StreamHeap& heap);
  // Are there any of the latter?
  bool retries() const { return retries_.load(std::memory_order_relaxed); }
  // Takes out those whose captures have ended, and those to be tried again. (Captures may overlap
  // without an end.)
  Due take_due();
  // These blocks are live again.
  void forget(std::span<const PlacedBlock> live);

  // A captured stream may use the block: its free waits for the captures that are bound now.
  void note_captured_use(Address block);

 private:
  bool look_up(Address block) const;
  void add_locked(Address block, Deferred deferred);

  PoolBindings& bindings_;
  std::atomic<bool> retries_{false};
  std::atomic<std::size_t> count_{0};  // of blocks_

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Deferred> blocks_;
  std::unordered_map<std::uint64_t, std::uint64_t> captured_uses_;  // the last binding at that time
};

}  // namespace weir
