// SPDX-License-Identifier: Apache-2.0
// Blocks of the device heap that the program has freed and that can't go back yet: a capture may
// use them, or what uses them could not be recorded. While there are any, the fast paths are
// closed.
//
// Threads: self-synchronised by one lock, taken before PoolBindings'. No lock of a pool is held
// when blocks go back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/heap/stream_heap.h"
#include "core/pool/pool_bindings.h"
#include "core/pool/pools.h"
#include "weir/heap_types.h"

namespace weir {

class WaitingFrees {
 public:
  explicit WaitingFrees(Pools& pools) : pools_(pools) {}

  bool contains(Address block) const;
  // Frees the block; in a later call where what uses it can't be recorded now: a stream that uses
  // it is captured, or (Trust::context) the device refuses. False: it is not live. Errors: device.
  Result<bool> free(StreamHeap& heap, Address block);
  // Frees the block once every capture that is bound now has ended, if `captured` or if a captured
  // stream may use it. Returns whether so.
  bool free_after_captures(StreamHeap& heap, Address block, bool captured);
  // A captured stream may use the block: its free waits for the captures that are bound now.
  void note_captured_use(Address block);
  // These blocks are live again.
  void forget(std::span<const PlacedBlock> live);

  // Does a block wait for an attempt to free it that succeeds?
  bool has_any_to_retry() const { return to_retry_.load(std::memory_order_relaxed); }
  // Frees blocks whose captures have ended, in graph pools too, and tries again what is to be
  // tried. (Captures may overlap without an end.)
  void free_due();
  // free_due(); then the host waits for all work, if a block is still to be tried again: the last
  // resort for those whose users are gone, where no event can stand for them. Errors: device.
  Status free_after_all_work();

 private:
  struct Waiting {
    StreamHeap* heap = nullptr;
    std::uint64_t last_binding = 0;  // that was open, or was before; 0: it is tried again and again
  };
  using Due = std::vector<std::pair<Address, Waiting>>;

  void add(Address block, Waiting waiting);  // with mutex_ held
  void add_to_retry(Address block, StreamHeap& heap);
  Due take_due();
  void free_all(const Due& due, StreamHeap::Gone gone);
  Result<bool> free_now(StreamHeap& heap, Address block, StreamHeap::Gone gone);

  Pools& pools_;
  PoolBindings& bindings_ = pools_.shared().bindings;
  std::atomic<bool> to_retry_{false};
  std::atomic<std::size_t> count_{0};  // of blocks_

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Waiting> blocks_;
  std::unordered_map<std::uint64_t, std::uint64_t> captured_uses_;  // the last binding at that time
};

}  // namespace weir
