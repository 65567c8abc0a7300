// SPDX-License-Identifier: Apache-2.0
// The memory of one stream heap: where its blocks come from, and where they go.
//
// The last few blocks that were freed are cached for requests of their sizes; the first request
// that finds none gives them all back. Small blocks are packed into slabs; large ones, and slabs,
// are runs of the page heap. Before the page heap is asked, heaps at rest give back what they
// cache; before it creates memory, all do whose lock is free.
//
// Threads: the stream heap's lock guards it. give_back_all() takes that lock, and so do other heaps
// of the pool that look for cached blocks.
#pragma once

#include "core/base/mutex.h"
#include "core/heap/caching_heaps.h"
#include "core/heap/heap_blocks.h"
#include "core/heap/served_stream.h"
#include "core/memory/page_heap.h"
#include "core/placement/placement_cache.h"

namespace weir {

struct PlacedBlock;

class HeapMemory {
 public:
  // Of `heap`, whose lock and stream these are.
  HeapMemory(StreamHeap& heap, Mutex& lock, ServedStream& served)
      : heap_(heap), lock_(lock), served_(served), blocks_(heap, served) {}

  // What the heaps of a pool share, while the heap is of one; null: it leaves its pool, and has no
  // blocks.
  void join_pool(CachingHeaps<HeapMemory>* caching_heaps);

  // A block of at least `requested` bytes: a cached one that suits, or of a slab, or a run. Nothing
  // counts it yet. None: `status` says why. `captured`: the stream is in a capture that nobody
  // announced; `create`: whether new memory of the device may be had for it.
  BlockRef allocate(Bytes requested, bool captured, PageHeap::Create create, Status& status);
  // The block at its place, while no heap of the pool caches blocks there; none, though `status` is
  // ok: the place is not free. `waits`: as Request has it.
  BlockRef allocate_at(const PlacedBlock& block, bool waits, Status& status);
  // The block, which is live no more, is cached, or goes back.
  void free(BlockRef block, bool may_cache);
  // Gives back the blocks that are cached; returns whether there were any.
  bool give_back_cached();
  // Every heap on the list that nobody is at work on gives back what it has cached.
  static void give_back_all(CachingHeaps<HeapMemory>& caching_heaps);

  const HeapBlocks& blocks() const { return blocks_; }
  const BlockCache& cache() const { return cache_; }

  // --- For the fast paths.
  // May the newest cached block, which is this one, serve a request of its size?
  bool suits(const Tile& run);
  bool suits(const SmallTile& tile);
  void take_newest() { (void)cache_.take_newest(); }
  // The block is live no more, for the statistics and the history.
  void take_back(const Tile& run);
  void take_back(const SmallTile& tile);
  // Can a block be cached with nothing else to be done?
  bool caches_at_once() const { return !cache_.full() && caching_link_.listed; }
  void put_in_cache(BlockCache::Cached block) { cache_.put(block); }

 private:
  friend struct TestAccess;
  // Whose cached blocks are asked for: only those of heaps that this thread put on the list, or
  // that served nothing since they were last looked at; or everyone's. Returns whether all did.
  enum class Others { at_rest, all };

  Status wait_and_take(BlockRef block);
  // Null: `status` says why.
  SmallTile* allocate_small(Bytes bytes, Status& status);
  SmallTile* find_settled(Bytes bytes, Status& status);
  SmallTile* add_slab(Status& status);  // all of a new slab
  Tile* allocate_run(Bytes bytes, bool for_slab, Status& status);
  Tile* find_run(Bytes bytes, RequestHistory::Name name, Status& status);
  Tile* claim_run(Range run, bool for_slab, bool waits, Status& status);
  Tile* add_run(Tile* run, RequestHistory::Name name, bool for_slab);
  PageHeap::Served served_since_asked();
  Owner owner() { return {&heap_, served_.id, served_.timeline, served_.fold}; }

  // The block goes back; where a run goes with it, to the page heap.
  void give_back(BlockRef block);
  void give_back_run(Tile* run) WEIR_REQUIRES(served_.pages->mutex());
  void give_back_cached_under_page_lock() WEIR_REQUIRES(served_.pages->mutex());
  // Releases and retakes the page heap's lock now and then, if there are many.
  bool have_others_give_back(Others whose) WEIR_REQUIRES(served_.pages->mutex());

  BlockCache cache_;
  CachingHeaps<HeapMemory>::Link caching_link_;
  StreamHeap& heap_;
  Mutex& lock_;
  ServedStream& served_;
  CachingHeaps<HeapMemory>* caching_heaps_ = nullptr;
  PageHeap::Create create_ = PageHeap::Create::may;  // in this request
  RequestHistory history_;                           // of runs
  PageHeap::Served asked_;                           // in all, when the page heap was last asked
  HeapBlocks blocks_;
};

// Memory that is only cached is used again by the request that it was placed for, when the
// program repeats it: for any other there may be a place that costs less. So what is kept changes
// nothing in where blocks lie. (A slab without live blocks is such memory, too.) Notes the request,
// if it is one for a run.
inline bool HeapMemory::suits(const Tile& run) { return history_.note_if(run.size, run.name); }
inline bool HeapMemory::suits(const SmallTile& tile) {
  return tile.slab->live > 0_B || history_.note_if(Slab::kSize, tile.slab->run->name);
}

[[gnu::always_inline]] inline BlockRef HeapMemory::allocate(Bytes requested, bool captured,
                                                            PageHeap::Create create,
                                                            Status& status) {
  const Bytes bytes = round_up(requested, kGrain);
  create_ = create;
  const BlockRef cached = cache_.empty() || captured ? BlockRef() : cache_.find(bytes);
  const auto suits = [&](const auto& record) { return this->suits(record); };
  if (cached && cached.visit(suits)) {
    status = wait_and_take(cached);
    if (status) return cached;
    // Where a capture is in the way of the wait there is other memory.
    if (!ServedStream::is_in_the_way(status)) return {};
    status = {};
  }
  // The page heap knows what a captured stream may have; slabs do not.
  if (bytes > Slabs::kLargest || captured) {
    return BlockRef(allocate_run(std::max(bytes, HeapBlocks::kAlone), /*for_slab=*/false, status));
  }
  give_back_cached();
  return BlockRef(allocate_small(bytes, status));
}

inline bool HeapMemory::give_back_cached() {
  if (cache_.empty()) return false;
  while (!cache_.empty()) give_back(cache_.take_newest());
  return true;
}

inline void HeapMemory::take_back(const Tile& run) {
  served_.fold.deallocate(run.size, run.requested);
  history_.subtract(run.size);
}
inline void HeapMemory::take_back(const SmallTile& tile) {
  const Bytes size = tile.size();
  served_.fold.deallocate(size, requested_of(tile));
  if ((tile.slab->live -= size) == 0_B) history_.subtract(Slab::kSize);
}

}  // namespace weir
