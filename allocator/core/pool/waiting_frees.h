// SPDX-License-Identifier: Apache-2.0
// Blocks that the program has freed and that can't go back yet, each for a reason.
//
// Threads: self-synchronised by one lock, taken after the graph pools' and before the registry's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/heap/heap_registry.h"
#include "core/heap/stream_heap.h"

namespace weir {

class WaitingFrees {
 public:
  enum class Reason : std::uint8_t {
    captures,     // a capture may use it: until all that were bound when it was freed are over
    own_capture,  // eager work may use it, and a capture into its graph pool goes on: until its end
    not_recorded,  // what uses it could not be recorded: until a later attempt succeeds
  };
  using Blocks = std::vector<std::pair<Address, StreamHeap*>>;

  explicit WaitingFrees(HeapRegistry& registry) : registry_(registry) {}

  // `last_binding`: PoolBindings::last(), for Reason::captures. While a block waits for another
  // reason than own_capture, the fast paths are closed.
  void add(Reason reason, StreamHeap& heap, Address block, std::uint64_t last_binding = 0);
  // `pool`: the id of a graph pool, for blocks that wait for its capture's end; 0: for all others.
  bool contains(Address block, std::uint64_t pool = 0) const;
  Blocks blocks(std::uint64_t pool) const;
  std::size_t count(std::uint64_t pool) const { return blocks(pool).size(); }
  // The pool made the block live again: its free is forgotten. Returns whether it waited here.
  bool forget(Address block, std::uint64_t pool = 0);

  // Takes out the blocks of a graph pool.
  Blocks take(std::uint64_t pool);
  // Takes out the others that need not wait for a capture, `oldest_capture` being
  // PoolBindings::oldest_capture(), and those to be tried again.
  Blocks take_due(std::uint64_t oldest_capture);
  // Is a block to be tried again?
  bool has_any_to_retry() const { return to_retry_.load(std::memory_order_relaxed); }
  // The graph pools that have blocks here, by id.
  std::vector<std::uint64_t> graph_pools() const;

  // A captured stream may use the block: its free waits for the captures that are bound now.
  void note_captured_use(Address block, std::uint64_t last_binding);
  bool has_captured_use(Address block) const;

 private:
  struct Row {
    StreamHeap* heap = nullptr;
    std::uint64_t last_binding = 0;  // 0: it waits for no capture
  };
  using Rows = std::unordered_map<std::uint64_t, Row>;  // by address
  using RowsByPool = std::map<std::uint64_t, Rows>;     // none is empty

  // With mutex_ held.
  template <class Due>
  Blocks take_if(std::uint64_t pool, Due&& due);
  void note_taken(RowsByPool::iterator rows, std::size_t count);

  HeapRegistry& registry_;
  std::atomic<bool> to_retry_{false};
  std::atomic<std::size_t> count_{0};  // of blocks

  mutable std::mutex mutex_;
  RowsByPool rows_;
  std::unordered_map<std::uint64_t, std::uint64_t> captured_uses_;  // the last binding at that time
};

}  // namespace weir
