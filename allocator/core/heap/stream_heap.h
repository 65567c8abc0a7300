// SPDX-License-Identifier: Apache-2.0
// The blocks of one stream: the way in and out of the allocator for it.
//
// A block is live from allocate() to deallocate(). HeapMemory decides where
// blocks lie and which freed blocks are cached; StreamHeap decides for whom: which stream it
// serves, whether the fast paths are open, what is counted and told to observers.
//
// Threads: self-synchronised by one lock a heap, taken after the pools' and the registry's and
// before the page heap's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/heap/block_ref.h"
#include "core/heap/caching_heaps.h"
#include "core/heap/heap_memory.h"
#include "core/heap/live_block.h"
#include "core/heap/served_stream.h"
#include "core/memory/layout.h"
#include "core/memory/page_heap.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/heap_types.h"

namespace weir {

class StreamHeap {
 public:
  // What the heaps of a pool share; outlives their membership.
  struct PoolParts {
    PageHeap* pages = nullptr;
    Timelines* timelines = nullptr;
    CachingHeaps<HeapMemory>* caching_heaps = nullptr;
    std::uint64_t id = 0;       // GraphPool::id(), without fast paths; 0: the device heap's own
    std::uint64_t streams = 0;  // that the pool has met, this one included
  };
  // Of no pool, until it adopts a stream of one: the first will be `stream`. It lives as long as
  // the registry, as whoever looks up an address may come to hold it at any time. `observer` must
  // outlive this.
  StreamHeap(HeapId id, std::uint64_t stream, MemoryKind memory, Observer& observer);

  HeapId id() const WEIR_NO_THREAD_ANALYSIS { return served_.id; }
  // GraphPool::id() of the pool that it is of; 0: it is the device heap's own, or no pool's.
  std::uint64_t pool() const WEIR_NO_THREAD_ANALYSIS {
    return served_.pool.load(std::memory_order_acquire);
  }
  MemoryKind memory() const { return memory_; }
  // For what is said of the whole as of one moment: every heap's lock is held.
  Mutex& mutex() const WEIR_RETURN_CAPABILITY(mutex_) { return mutex_; }

  // The fast paths, for a heap that serves one stream and that nobody records: the newest cached
  // block is given out, a block without other users is freed. No address, or false: nothing
  // is done, and the calls below decide. If the fast path is open and no block fits,
  // allocate_cached() sets `misses` and leaves the heap locked: the caller calls
  // allocate_after_miss(), or unlocks mutex_.
  Address allocate_cached(Bytes requested, std::uint64_t stream,
                          bool& misses) WEIR_NO_THREAD_ANALYSIS;
  // Serves the request as allocate() does, and unlocks the heap.
  Address allocate_after_miss(Bytes requested, Status& status,
                              PageHeap::Create create) WEIR_NO_THREAD_ANALYSIS;
  // `run`: what the index has for the address.
  bool try_deallocate(Address block, Tile* run) WEIR_NO_THREAD_ANALYSIS;

  // A block of at least `requested` bytes, not zero, for work on the stream of id `stream`. On
  // null: an error in `status` is the reason; if `status` is ok, this heap doesn't serve the
  // stream. Errors: out_of_memory; device. (A Result around a pointer costs more than it says.)
  // `create`: whether new memory of the device may be had for it.
  Address allocate(Bytes requested, std::uint64_t stream, Status& status,
                   PageHeap::Create create = PageHeap::Create::may);
  // The block at its place, for work on the stream that the heap serves. `launch_of`: a launch of
  // that graph pool is to use it, and the stream is made to wait for those who used the place; 0:
  // the program sees to that. Under Trust::told its users are waited for in any case.
  // Errors: invalid_argument (the place is not free); device.
  Status allocate_at(const PlacedBlock& block, std::uint64_t launch_of = 0);
  using Gone = LiveBlock::Gone;
  // False: no live block begins there.
  // Errors: capture, device (a fence of its users could not be taken: the block is still live).
  Result<bool> deallocate(Address block, Gone gone = Gone::error);
  // deallocate() of a block that no other stream uses, which is not cached.
  void give_back(Address block);

  // The live block that begins, or lies around, there; and the heap's lock. If there is none, or if
  // the heap is not of the pool whose timelines these are, no block: a heap that was found by an
  // address may be of another pool by now.
  LiveBlock live(Address block, const Timelines* timelines = nullptr) WEIR_NO_THREAD_ANALYSIS;
  LiveBlock live_around(Address address,
                        const Timelines* timelines = nullptr) WEIR_NO_THREAD_ANALYSIS;
  void list_placed(std::vector<PlacedBlock>& blocks) const;
  void list_blocks(std::vector<BlockInfo>& blocks) const WEIR_REQUIRES(mutex_);

  // Gives back the blocks that are cached; returns whether there were any. If the page heap fell
  // asleep, or woke, whoever was served before that has been, once this returns.
  bool give_back_cached();
  bool give_back_cached_locked() WEIR_REQUIRES(mutex_) { return held_.give_back_cached(); }
  // While requests may have to go elsewhere, every call has to ask: the fast paths are closed.
  void allow_fast_paths(bool allowed);
  // Whether every allocation and deallocation is passed on; then there is no fast path.
  void set_recording(bool recording) WEIR_REQUIRES(mutex_);

  // Serves another stream from now on, of its pool or another, if it is closed and has no blocks;
  // and says so.
  bool adopt(const PoolParts& parts, Stream stream);
  // The same stream in another epoch (eager, or captured): serves requests that name `as`, whose
  // work is ordered by the timeline of `as`. Whoever might still use free memory is done. `epoch`
  // is the caller's number for it; that of the first is 0.
  void move_to(Stream as, std::uint32_t epoch);
  // The stream is retired: nothing is allocated for it any more.
  void close();
  // Its pool is gone, and it has no blocks: it is no pool's, until it adopts a stream of one.
  void leave_pool();

  // Of the stream that it serves, or served last, since it was adopted; without the pool.
  PoolLayout layout() const {
    const MutexLock lock(mutex_);
    return {.placements = served_.fold.blocks_in_all() - placed_before_, .hash = layout_.hash()};
  }
  HeapStatistics statistics() const {
    const MutexLock lock(mutex_);
    return served_.fold.statistics();
  }
  HeapFold& fold() WEIR_REQUIRES(mutex_) { return served_.fold; }
  // The stream that it serves, or served last: whether it does.
  std::pair<std::uint64_t, bool> stream_locked() const WEIR_REQUIRES(mutex_) {
    return {served_.stream.id, serves_ != kNoStream};
  }
  // Broken invariants. The runs of the page heap that it holds are added to `runs`.
  std::vector<std::string> validate(std::vector<Range>& runs) const WEIR_REQUIRES(mutex_);

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kNoStream = ~std::uint64_t{0};

  void serve(std::uint64_t stream) WEIR_REQUIRES(mutex_);
  Address allocate_locked(Bytes requested, Status& status, PageHeap::Create create)
      WEIR_REQUIRES(mutex_);
  Address give_out(BlockRef block, Bytes requested, std::uint64_t launch_of = 0)
      WEIR_REQUIRES(mutex_);
  void free(BlockRef block, bool may_cache = true) WEIR_REQUIRES(mutex_);
  bool free_and_unlock(BlockRef block) WEIR_NO_THREAD_ANALYSIS;
  Nanoseconds record(EventKind kind, BlockRef block, std::uint64_t launch_of = 0)
      WEIR_REQUIRES(mutex_);

  const MemoryKind memory_;

  alignas(64) mutable Mutex mutex_;
  std::uint64_t serves_ WEIR_GUARDED_BY(mutex_) = kNoStream;  // Stream::id; kNoStream: it is closed
  // For the fast paths: kNoStream where serve() allows none.
  std::uint64_t fast_stream_ WEIR_GUARDED_BY(mutex_) = kNoStream;
  bool fast_paths_ WEIR_GUARDED_BY(mutex_) = true;
  bool recording_ WEIR_GUARDED_BY(mutex_);
  HeapMemory held_ WEIR_GUARDED_BY(mutex_);
  ServedStream served_ WEIR_GUARDED_BY(mutex_);
  Layout layout_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t placed_before_ WEIR_GUARDED_BY(mutex_) = 0;  // for streams that it served before
};

// Leaf functions, but for calls that come last: so they save no registers.
[[gnu::always_inline]] inline Address StreamHeap::allocate_cached(Bytes requested,
                                                                  std::uint64_t stream,
                                                                  bool& misses) {
  if (!mutex_.try_lock()) return {};
  if (stream != fast_stream_) [[unlikely]] {
    mutex_.unlock();
    return {};
  }
  if (!held_.cache().empty()) [[likely]] {
    const BlockCache::Cached& newest = held_.cache().newest();
    const DeviceFold::Levels levels = served_.fold.levels_with(newest.size, requested);
    Address at;
    const auto take = [&](auto& record) WEIR_NO_THREAD_ANALYSIS {
      if (record.uses || !held_.suits(record)) return false;
      mark_live(record, requested);
      layout_.add(item_of(record));
      at = begin_of(record);
      held_.take_newest();
      served_.fold.allocate(levels, size_of(record), requested);
      mutex_.unlock();
      return true;
    };
    const bool fits = newest.size == round_up(requested, kGrain) && served_.fold.has_room(levels);
    if (fits && newest.block.visit(take)) [[likely]]
      return at;
  }
  misses = true;
  return {};
}

[[gnu::always_inline]] inline bool StreamHeap::try_deallocate(Address address, Tile* run) {
  if (!mutex_.try_lock()) return false;
  const BlockRef block =
      held_.blocks().is_own(*run) ? HeapBlocks::live_in(run, address) : BlockRef();
  if (!block || fast_stream_ == kNoStream || served_.pages->over_limit()) [[unlikely]] {
    mutex_.unlock();
    return false;
  }
  const auto cache = [&](auto& record) __attribute__((always_inline)) WEIR_NO_THREAD_ANALYSIS {
    if (record.uses) [[unlikely]] {
      mutex_.unlock();
      return false;
    }
    if (!held_.caches_at_once() || !served_.fold.lags()) [[unlikely]]
      return free_and_unlock(BlockRef(&record));
    held_.take_back(record);
    record.state = BlockState::cached;
    held_.put_in_cache({size_of(record), BlockRef(&record)});
    mutex_.unlock();
    return true;
  };
  return block.visit(cache);
}

}  // namespace weir
