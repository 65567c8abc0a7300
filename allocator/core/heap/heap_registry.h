// SPDX-License-Identifier: Apache-2.0
// The stream heaps of one device, of its own and of its graph pools: by number, and by address.
//
// A heap that was added stays, so that looking one up by address takes no lock: one whose pool is
// gone serves streams of other pools later. So the heap that a thread found may be of another pool,
// or of none, by the time that the thread takes its lock; under it the heap says whether it has the
// block. A live block keeps its heap in its pool.
//
// The registry also says whether the heaps' fast paths are open, as a heap that is added later must
// follow.
//
// Threads: self-synchronised by one lock, taken before every heap's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "core/heap/stream_heap.h"
#include "core/memory/tile_index.h"

namespace weir {

class HeapRegistry {
 public:
  using Heaps = std::span<const std::unique_ptr<StreamHeap>>;  // by HeapId

  TileIndex& index() { return index_; }
  // The heap whose run the address lies in, if it lies in one; else any, or null. Whether it does,
  // the heap knows.
  StreamHeap* owner_of(Address address) const {
    const Tile* const tile = index_.find(address);
    return tile == nullptr ? nullptr : tile->heap.load(std::memory_order_acquire);
  }

  // A heap for the stream, of the pool with these parts: one that is no pool's, or a new one.
  StreamHeap& add(const StreamHeap::PoolParts& parts, Stream stream, Observer& observer);
  // Their pool is about to go, and they have no blocks: they are whoever's that needs some next.
  void take_back(std::span<StreamHeap* const> heaps);

  // Destroys all heaps: before what they were made with, which their pools and the observer are.
  void clear();

  // Closes the fast paths of the device heap's own heaps (graph pools' have none) until it is let
  // go of as often as it was held.
  void hold_fast_paths();
  void let_go_of_fast_paths();
  bool are_fast_paths_held() const { return holds_.load(std::memory_order_acquire) != 0; }
  // Has every heap give back its cached blocks; returns whether there were any.
  bool give_back_cached() const;

  // Calls function(heaps) with every heap's lock held, and no heap being added.
  template <class Function>
  void at_one_moment(Function&& function) const WEIR_NO_THREAD_ANALYSIS {
    const std::shared_lock lock(mutex_);
    const std::vector<StreamHeap*> in_order = lock_order();
    for (StreamHeap* const heap : in_order) heap->mutex().lock();
    function(Heaps(heaps_));
    for (StreamHeap* const heap : in_order) heap->mutex().unlock();
  }

 private:
  std::vector<StreamHeap*>& spare(MemoryKind memory) {
    return spare_[memory == MemoryKind::plain ? 1 : 0];
  }
  void allow_fast_paths(bool allowed);
  // In which the heaps' locks are taken: graph pools' first.
  std::vector<StreamHeap*> lock_order() const;

  TileIndex index_;
  mutable std::shared_mutex mutex_;
  std::vector<std::unique_ptr<StreamHeap>> heaps_;  // by HeapId
  std::array<std::vector<StreamHeap*>, 2> spare_;   // of no pool: for pages, for plain memory
  std::atomic<std::uint64_t> holds_{0};  // of the fast paths; changed with the lock held alone

  friend struct TestAccess;
};

}  // namespace weir
