// SPDX-License-Identifier: Apache-2.0
// What a stream heap has of the page heap: runs, which are large blocks, or slabs of small ones.
// Finds its blocks by address. Decides nothing.
// Not thread-safe: the heap's lock guards it.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "core/base/broken.h"
#include "core/heap/block_ref.h"
#include "core/heap/served_stream.h"
#include "core/heap/slabs.h"

namespace weir {

class HeapBlocks {
 public:
  // The least run that is no slab: what a small block has that lies in no slab.
  static constexpr Bytes kAlone = Slabs::kLargest + kGrain;

  // Of `heap`, which serves this stream.
  HeapBlocks(const StreamHeap& heap, const ServedStream& served) : heap_(heap), served_(served) {}

  // Does a request for so many bytes get a block of that size?
  static bool is_size_for(Bytes requested, Bytes size) {
    return size == round_up(requested, kGrain) || (size == kAlone && requested < kAlone);
  }

  // The page heap gave the run to this heap.
  void add(Tile* run);
  // The run goes back to the page heap.
  void remove(Tile* run);
  // A run becomes a slab, which is all free.
  SmallTile& make_slab(Tile& run);
  Slabs& slabs() { return slabs_; }
  // The block is no more. The run that goes back with it: its own, or its slab's if it was the last
  // there. Else null.
  Tile* release(BlockRef block) {
    return block.is_small() ? slabs_.free(block.tile()) : block.run();
  }
  // There are no runs any more: those of another pool come next.
  void leave_pool() { slabs_ = {}; }

  // The heap's run that the address lies in, if it lies in one; else any of its, or null.
  Tile* run_near(Address address) const {
    Tile* const run = runs_ == nullptr ? nullptr : served_.pages->find_tile(address);
    return run != nullptr && is_own(*run) ? run : nullptr;
  }
  // `run`: what the index has for some address.
  bool is_own(const Tile& run) const { return run.heap.load(std::memory_order_relaxed) == &heap_; }
  // The live block that begins at `address`; `run`: the heap's run near it, or null.
  static BlockRef live_in(Tile* run, Address address);
  BlockRef live_at(Address address) const { return live_in(run_near(address), address); }
  // The live block that lies around `address`.
  BlockRef live_around(Address address) const;

  // Calls visit(BlockRef) for every live or cached block, by address.
  template <class Visitor>
  void for_each(Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (Tile* const run : runs_by_address()) {
      if (run->slab == nullptr) {
        visit(BlockRef(run));
        continue;
      }
      for (SmallTile* tile = run->slab->first[0]; tile != nullptr; tile = tile->after) {
        if (tile->state != BlockState::free) visit(BlockRef(tile));
      }
    }
  }
  // Broken invariants; `cache` is the heap's. The runs are added to `runs`.
  std::vector<std::string> validate(const BlockCache& cache, std::vector<Range>& runs) const;

 private:
  friend struct TestAccess;

  std::vector<Tile*> runs_by_address() const;
  void validate_block(BlockRef block, const BlockCache& cache, Broken& broken) const;

  const StreamHeap& heap_;
  const ServedStream& served_;
  Tile* runs_ = nullptr;  // linked by `next`, the latest first
  Slabs slabs_;
};

inline BlockRef HeapBlocks::live_in(Tile* run, Address address) {
  if (run == nullptr) return {};
  if (run->slab != nullptr) {
    if (address - run->begin >= run->size) return {};
    SmallTile* const tile = run->slab->tile_at(address);
    return tile->begin() == address && tile->state == BlockState::live ? BlockRef(tile)
                                                                       : BlockRef();
  }
  return run->begin == address && run->state == BlockState::live ? BlockRef(run) : BlockRef();
}

inline void HeapBlocks::add(Tile* run) {
  run->allocated_at = {};
  run->previous = nullptr;
  run->next = runs_;
  if (runs_ != nullptr) runs_->previous = run;
  runs_ = run;
}

inline void HeapBlocks::remove(Tile* run) {
  if (run->next != nullptr) run->next->previous = run->previous;
  (run->previous == nullptr ? runs_ : run->previous->next) = run->next;
}

inline SmallTile& HeapBlocks::make_slab(Tile& run) {
  run.slab = &slabs_.add(&run);
  return *run.slab->first[0];
}

}  // namespace weir
