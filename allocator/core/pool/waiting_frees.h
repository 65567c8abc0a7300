// SPDX-License-Identifier: Apache-2.0
// Blocks that the program has freed and that can't go back yet: a capture may use them, or what
// uses them could not be recorded. (Those of a graph pool that wait for its own capture's end are
// the pool's: CapturePool.)
//
// Threads: self-synchronised by one lock, taken after the graph pools' and before the registry's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/heap/heap_registry.h"
#include "core/heap/stream_heap.h"

namespace weir {

class WaitingFrees {
 public:
  using Blocks = std::vector<std::pair<Address, StreamHeap*>>;

  explicit WaitingFrees(HeapRegistry& registry) : registry_(registry) {}

  // The block goes back when all captures are over that were bound when it was freed,
  // `last_binding` being PoolBindings::last() then; 0: at a later attempt. While any block waits,
  // the fast paths are closed.
  void add(StreamHeap& heap, Address block, std::uint64_t last_binding);
  bool contains(Address block) const;
  // A pool made the block live again: its free is forgotten.
  void forget(Address block);
  // Takes out those that need not wait for a capture, `oldest_capture` being
  // PoolBindings::oldest_capture(), and those to be tried again.
  Blocks take_due(std::uint64_t oldest_capture);
  // Is a block to be tried again?
  bool has_any_to_retry() const { return to_retry_.load(std::memory_order_relaxed); }

  // A captured stream may use the block: its free waits for the captures that are bound now.
  void note_captured_use(Address block, std::uint64_t last_binding);
  bool has_captured_use(Address block) const;

 private:
  struct Row {
    StreamHeap* heap = nullptr;
    std::uint64_t last_binding = 0;  // 0: it waits for no capture
  };
  void note_taken(std::size_t count);  // with mutex_ held

  HeapRegistry& registry_;
  std::atomic<bool> to_retry_{false};
  std::atomic<std::size_t> count_{0};  // of blocks

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Row> rows_;                     // by address
  std::unordered_map<std::uint64_t, std::uint64_t> captured_uses_;  // the last binding at that time
};

}  // namespace weir
