// SPDX-License-Identifier: Apache-2.0
// The blocks of one stream: the way in and out of the allocator for it.
//
// The last few blocks that were freed are cached for requests of their sizes; the first
// request that finds none gives them all back. Small blocks are packed into slabs under this heap's
// lock alone; large ones, and slabs, are runs of the page heap. A block is live from allocate() to
// deallocate(), and nothing else.
//
// Threads: self-synchronised by one lock a heap, taken after the pools' and the registry's and
// before the page heap's.
//
// More than 25 methods: a block's life has some fifteen calls, twice where the fast path has one of
// its own, and all are served under the one lock.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/heap/block_ref.h"
#include "core/heap/caching_heaps.h"
#include "core/heap/slabs.h"
#include "core/memory/page_heap.h"
#include "core/placement/placement_cache.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/heap_types.h"

namespace weir {

struct PlacedBlock;

class StreamHeap {
 public:
  // What the heaps of a pool share; outlives their membership.
  struct PoolParts {
    PageHeap* pages = nullptr;
    Timelines* timelines = nullptr;
    CachingHeaps<StreamHeap>* caching_heaps = nullptr;
    std::uint64_t id = 0;  // GraphPool::id(), without fast paths; 0: the device heap's own
  };
  // Of no pool, until it adopts a stream of one: the first will be `stream`. It lives as long as
  // the registry, as whoever looks up an address may come to hold it at any time. `observer` must
  // outlive this.
  StreamHeap(HeapId id, std::uint64_t stream, MemoryKind memory, Observer& observer);
  StreamHeap(const StreamHeap&) = delete;
  StreamHeap& operator=(const StreamHeap&) = delete;

  HeapId id() const { return id_; }
  // GraphPool::id() of the pool that it is of; 0: it is the device heap's own, or no pool's.
  std::uint64_t pool() const { return pool_.load(std::memory_order_acquire); }
  MemoryKind memory() const { return memory_; }

  // The fast paths, for a heap that serves one stream and that nobody records: the newest cached
  // block is given out, a block without other users is freed. No address, or false: nothing
  // is done, and the calls below decide. If the fast path is open and no block fits,
  // allocate_cached() sets `misses` and leaves the heap locked: the caller calls
  // allocate_after_miss(), or unlock().
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

  // The block at its place, for work on the stream that the heap serves.
  // Errors: invalid_argument (the place is not free); device.
  Status allocate_at(const PlacedBlock& block);
  void list_placed(std::vector<PlacedBlock>& blocks) const;
  // Does a request for so many bytes get a block of that size?
  static bool is_size_for(Bytes requested, Bytes size) {
    return size == round_up(requested, kGrain) || (size == kAlone && requested < kAlone);
  }

  // Is `block` live? The next four change nothing, and say so, if not, or if the heap is not of the
  // pool of `timelines`, which the fence, or the user, is of: a heap that was found by an address
  // may be of another by now.
  bool has(Address block) const;
  bool fence(Address block, const Timelines& timelines, Fence fence);
  // Fences the live block that lies around the address, unless that is `fenced` already. Its start;
  // null if there is none.
  Address fence_around(Address address, const Timelines& timelines, Fence fence, Address fenced);
  // A fence on the work queued so far on `user`'s stream; none is taken on the block's own.
  // Errors: device.
  Result<bool> fence(Address block, const Timelines& timelines, TimelineId user);
  bool record_stream(Address block, const Timelines& timelines, TimelineId user);
  // The streams that record_stream named for the live block that begins there.
  std::vector<TimelineId> users_of(Address block) const;
  // Where a fence that record_stream asked for can't be taken, since its stream is gone: an error;
  // or the work of all streams is waited for instead; or it is over.
  enum class Gone { error, behind_all, after_all };
  // Errors: capture, device (such a fence could not be taken: the block is still live then).
  Result<bool> deallocate(Address block, Gone gone = Gone::error);

  std::optional<BlockInfo> find(Address address) const;
  // The stream that the live block which begins there was allocated for.
  std::optional<Stream> stream_of(Address block) const;

  // Gives back the blocks that are cached; returns whether there were any.
  bool give_back_cached();
  // While requests may have to go elsewhere, every call has to ask: the fast paths are closed.
  void allow_fast_paths(bool allowed);
  // The page heap fell asleep, or woke: whoever was served before that has been, once this returns.
  void note_asleep();
  // The stream is retired: nothing is allocated for it any more.
  void close();
  // Serves another stream from now on, of its pool or another, if it is closed and has no blocks.
  bool adopt(const PoolParts& parts, Stream stream);
  // Its pool is gone, and it has no blocks: it is no pool's, until it adopts a stream of one.
  void leave_pool();
  // Says that it serves its stream from now on.
  void announce();
  // The same stream in another epoch (eager, or captured): serves requests that name `as`, whose
  // work is ordered by the timeline of `as`. Whoever might still use free memory is done. `epoch`
  // is the caller's number for it; that of the first is 0.
  void move_to(Stream as, std::uint32_t epoch);
  // In which the live block that begins there was allocated.
  std::optional<std::uint32_t> epoch_of(Address block) const;
  // Every heap on the list that nobody is at work on gives back what it has cached.
  static void give_back_all(CachingHeaps<StreamHeap>& caching_heaps);

  // For what is said of the whole as of one moment: every heap's lock is held.
  // The runs of the page heap that it holds are added to `runs`, its live blocks to `blocks`.
  void lock() WEIR_ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() WEIR_RELEASE(mutex_) { mutex_.unlock(); }
  std::vector<std::string> validate(std::vector<Range>& runs) const WEIR_REQUIRES(mutex_);
  HeapStatistics statistics() const {
    const MutexLock lock(mutex_);
    return fold_.statistics();
  }
  HeapStatistics statistics_locked() const WEIR_REQUIRES(mutex_) { return fold_.statistics(); }
  void reset_peaks() WEIR_REQUIRES(mutex_) { fold_.reset_peaks(); }
  bool serves(std::uint64_t stream) const WEIR_REQUIRES(mutex_) { return serves_ == stream; }
  void list_blocks(std::vector<BlockInfo>& blocks) const WEIR_REQUIRES(mutex_);
  // The stream that it serves, or served last: whether it does.
  std::pair<std::uint64_t, bool> stream_locked() const WEIR_REQUIRES(mutex_) {
    return {stream_.id, serves_ != kNoStream};
  }
  // Whether every allocation and deallocation is passed on; then there is no fast path.
  void set_recording(bool recording) WEIR_REQUIRES(mutex_);
  bool give_back_cached_locked() WEIR_REQUIRES(mutex_) {
    if (cached_count_ == 0) return false;
    while (cached_count_ > 0) give_back(cached_[--cached_count_].block);
    return true;
  }

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kNoStream = ~std::uint64_t{0};
  // Cached blocks, at most.
  static constexpr std::size_t kMostCached = 8;
  // The least run that is no slab: what a small block has that lies in no slab.
  static constexpr Bytes kAlone = Slabs::kLargest + kGrain;

  struct Cached {
    Bytes size;
    BlockRef block;
    friend bool operator==(const Cached&, const Cached&) = default;
  };

  BlockRef find_cached(Bytes bytes) const WEIR_REQUIRES(mutex_);
  bool suits(const Tile& run) WEIR_REQUIRES(mutex_);
  bool suits(const SmallTile& tile) WEIR_REQUIRES(mutex_);
  void take_from_cache(BlockRef block) WEIR_REQUIRES(mutex_);
  Status wait_and_take(BlockRef block) WEIR_REQUIRES(mutex_);
  Address allocate_locked(Bytes requested, Status& status, PageHeap::Create create)
      WEIR_REQUIRES(mutex_);
  void give_out(BlockRef block, Bytes requested) WEIR_REQUIRES(mutex_);
  static void mark_live(Tile& run, Bytes requested);
  static void mark_live(SmallTile& tile, Bytes requested);
  void set_stream(Stream stream) WEIR_REQUIRES(mutex_);
  void join_pool(const PoolParts& parts) WEIR_REQUIRES(mutex_);
  PageHeap::Served served_since_asked() WEIR_REQUIRES(mutex_);
  // Null: `status` says why.
  SmallTile* allocate_small(Bytes bytes, Status& status) WEIR_REQUIRES(mutex_);
  Tile* allocate_run(Bytes bytes, bool for_slab, Status& status) WEIR_REQUIRES(mutex_);
  Tile* add_run(Tile* run, RequestHistory::Name name, bool for_slab) WEIR_REQUIRES(mutex_);
  Tile* claim_run(Range run, bool for_slab, Status& status) WEIR_REQUIRES(mutex_);
  // The heap's run that the address lies in, if it lies in one; else any of its, or null.
  Tile* run_near(Address address) const WEIR_REQUIRES(mutex_) {
    Tile* const run = runs_ == nullptr ? nullptr : pages_->find_tile(address);
    return run != nullptr && run->heap.load(std::memory_order_relaxed) == this ? run : nullptr;
  }
  // The live block that begins at `address`; `run`: the heap's run near it, or null.
  static BlockRef live_in(Tile* run, Address address);
  BlockRef live_at(Address address) const WEIR_REQUIRES(mutex_) {
    return live_in(run_near(address), address);
  }
  BlockRef live_at(Address address, const Timelines& timelines) const WEIR_REQUIRES(mutex_) {
    return &timelines == timelines_ ? live_at(address) : BlockRef();
  }
  BlockRef block_around(Address address) const WEIR_REQUIRES(mutex_);
  void add_fence(BlockRef block, Fence fence) WEIR_REQUIRES(mutex_);
  Status fence_users(BlockRef block, Gone gone) WEIR_REQUIRES(mutex_);
  // Makes the stream wait for `fences`.
  Status wait(const FenceSet& fences) WEIR_REQUIRES(mutex_);
  // Is it only that this memory can't be waited for?
  static bool is_in_the_way(const Status& status) {
    return !status && status.error().code() == ErrorCode::capture;
  }
  // All of a new slab.
  SmallTile* add_slab(Status& status) WEIR_REQUIRES(mutex_);
  SmallTile& enter_slab(Tile& run) WEIR_REQUIRES(mutex_);
  SmallTile* find_settled(Bytes bytes, Status& status) WEIR_REQUIRES(mutex_);
  // The stream was made to wait for this.
  void note_waited(const FenceSet& fences) WEIR_REQUIRES(mutex_);
  bool is_captured_after_a_wait() WEIR_REQUIRES(mutex_);
  // Is nobody to be waited for, as far as is known or can be seen now?
  bool is_settled(const FenceSet& fences) WEIR_REQUIRES(mutex_);
  // Before bytes that carry `uses` serve the next block: makes the stream wait or, where no request
  // waits, checks that nobody is to be waited for. Then `uses` is null.
  Status wait_for(BlockUsesPtr& uses) WEIR_REQUIRES(mutex_);

  bool may_cache() const WEIR_REQUIRES(mutex_) {
    return serves_ != kNoStream && !pages_->over_limit() && !pages_->is_asleep();
  }
  void take_back(Tile& run) WEIR_REQUIRES(mutex_);
  void take_back(SmallTile& tile) WEIR_REQUIRES(mutex_);
  void free(BlockRef block) WEIR_REQUIRES(mutex_);
  bool free_and_unlock(BlockRef block) WEIR_NO_THREAD_ANALYSIS;
  void put_in_cache(BlockRef block) WEIR_REQUIRES(mutex_);
  // The block goes back; where a run goes with it, to the page heap.
  void give_back(BlockRef block) WEIR_REQUIRES(mutex_);
  void give_back_cached_under_page_lock() WEIR_REQUIRES(mutex_, pages_->mutex());
  // The block itself, or its slab's run if it was the last there; null: it was not.
  Tile* run_of_last(BlockRef block) WEIR_REQUIRES(mutex_);
  void give_back_run(Tile* run) WEIR_REQUIRES(mutex_, pages_->mutex());
  // Whose cached blocks are asked for: only those of heaps that this thread put on the list, or
  // that served nothing since they were last looked at; or everyone's. Returns whether all did.
  enum class Others { at_rest, all };
  // Releases and retakes the page heap's lock now and then, if there are many.
  bool have_others_give_back(Others whose) WEIR_REQUIRES(mutex_, pages_->mutex());
  Tile* find_run(Bytes bytes, RequestHistory::Name name, Status& status) WEIR_REQUIRES(mutex_);

  // Calls visit(BlockRef) for every live or cached block, by address.
  template <class Visitor>
  void for_each_block(Visitor&& visit) const WEIR_REQUIRES(mutex_) {
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
  std::vector<Tile*> runs_by_address() const WEIR_REQUIRES(mutex_);
  Owner owner() WEIR_REQUIRES(mutex_);
  BlockInfo info(BlockRef block) const WEIR_REQUIRES(mutex_);
  void record(EventKind kind, BlockRef block) WEIR_REQUIRES(mutex_);
  void validate_block(BlockRef block, std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);

  const HeapId id_;
  const MemoryKind memory_;
  Observer& observer_;
  // Of its pool: they change while it serves no stream and has no blocks, with the registry's lock
  // held as well, and are null while it is of none.
  PageHeap* pages_ = nullptr;
  Timelines* timelines_ = nullptr;
  CachingHeaps<StreamHeap>* caching_heaps_ = nullptr;
  std::atomic<std::uint64_t> pool_{0};

  alignas(64) mutable Mutex mutex_;
  std::uint64_t serves_ WEIR_GUARDED_BY(mutex_) = kNoStream;  // Stream::id; kNoStream: it is closed
  // For the fast paths: kNoStream where every call is recorded, or the heap is closed.
  std::uint64_t fast_stream_ WEIR_GUARDED_BY(mutex_) = kNoStream;
  bool fast_paths_ WEIR_GUARDED_BY(mutex_) = true;
  bool recording_ WEIR_GUARDED_BY(mutex_);
  // Where uses need not be told: what the stream was made to wait for, until that is seen to be
  // over. A graph is not ordered behind it, though the stream is; so every request asks meanwhile
  // whether the stream is in a capture that nobody announced.
  FenceSet waited_for_ WEIR_GUARDED_BY(mutex_);
  std::uint32_t asked_meanwhile_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint32_t cached_count_ WEIR_GUARDED_BY(mutex_) = 0;
  std::array<Cached, kMostCached> cached_
      WEIR_GUARDED_BY(mutex_);                   // the first cached_count_, oldest first
  CachingHeaps<StreamHeap>::Link caching_link_;  // `listed`: guarded by mutex_
  HeapFold fold_ WEIR_GUARDED_BY(mutex_);
  Tile* runs_ WEIR_GUARDED_BY(mutex_) = nullptr;  // linked by `next`, the latest first
  Slabs slabs_ WEIR_GUARDED_BY(mutex_);
  Stream stream_ WEIR_GUARDED_BY(mutex_);
  TimelineId timeline_ WEIR_GUARDED_BY(mutex_);
  std::uint32_t epoch_ WEIR_GUARDED_BY(mutex_) = 0;
  PageHeap::Create create_ WEIR_GUARDED_BY(mutex_) = PageHeap::Create::may;  // in this request
  RequestHistory history_ WEIR_GUARDED_BY(mutex_);                           // of runs
  PageHeap::Served asked_ WEIR_GUARDED_BY(mutex_);  // in all, when the page heap was last asked
};

// The newest of that size.
inline BlockRef StreamHeap::find_cached(Bytes bytes) const {
  for (std::uint32_t i = cached_count_; i-- > 0;) {
    if (cached_[i].size == bytes) return cached_[i].block;
  }
  return {};
}

// Memory that is only cached is used again by the request that it was placed for, when the
// program repeats it: for any other there may be a place that costs less. So what is kept changes
// nothing in where blocks lie. (A slab without live blocks is such memory, too.) Notes the request,
// if it is one for a run.
inline bool StreamHeap::suits(const Tile& run) { return history_.note_if(run.size, run.name); }
inline bool StreamHeap::suits(const SmallTile& tile) {
  return tile.slab->live > 0_B || history_.note_if(Slab::kSize, tile.slab->run->name);
}

inline void StreamHeap::take_from_cache(BlockRef block) {
  Cached* place = &cached_[--cached_count_];
  for (Cached moved = *place; moved.block != block;) moved = std::exchange(*--place, moved);
}

inline void StreamHeap::mark_live(Tile& run, Bytes requested) {
  run.state = BlockState::live;
  run.requested = requested;
}
inline void StreamHeap::mark_live(SmallTile& tile, Bytes requested) {
  tile.state = BlockState::live;
  tile.held.requested = static_cast<std::uint32_t>(requested.count);
  tile.slab->live += tile.size();
}
inline void StreamHeap::give_out(BlockRef block, Bytes requested) {
  block.visit([&](auto& record) { mark_live(record, requested); });
  fold_.allocate(block.size(), requested);
}

// Leaf functions, but for calls that come last: so they save no registers.
[[gnu::always_inline]] inline Address StreamHeap::allocate_cached(Bytes requested,
                                                                  std::uint64_t stream,
                                                                  bool& misses) {
  if (!mutex_.try_lock()) return {};
  if (stream != fast_stream_) [[unlikely]] {
    mutex_.unlock();
    return {};
  }
  if (cached_count_ > 0) [[likely]] {
    const Cached& newest = cached_[cached_count_ - 1];
    const auto take = [&](auto& record) WEIR_REQUIRES(mutex_) {
      if (record.uses || !suits(record)) return Address{};
      mark_live(record, requested);
      return begin_of(record);
    };
    const bool fits =
        newest.size == round_up(requested, kGrain) && fold_.has_room(newest.size, requested);
    const Address at = fits ? newest.block.visit(take) : Address{};
    if (at.value != 0) [[likely]] {
      --cached_count_;
      fold_.allocate(newest.size, requested);
      mutex_.unlock();
      return at;
    }
  }
  misses = true;
  return {};
}

inline BlockRef StreamHeap::live_in(Tile* run, Address address) {
  if (run == nullptr) return {};
  if (run->slab != nullptr) {
    if (address - run->begin >= run->size) return {};
    SmallTile* const tile = run->slab->tile_at(address);
    return tile->begin() == address && tile->state == BlockState::live ? BlockRef(tile)
                                                                       : BlockRef();
  }
  return run->begin == address && run->state == BlockState::live ? BlockRef(run) : BlockRef();
}

// The block is live no more, for the statistics and the history.
inline void StreamHeap::take_back(Tile& run) {
  fold_.deallocate(run.size, run.requested);
  history_.subtract(run.size);
}
inline void StreamHeap::take_back(SmallTile& tile) {
  const Bytes size = tile.size();
  fold_.deallocate(size, requested_of(tile));
  if ((tile.slab->live -= size) == 0_B) history_.subtract(Slab::kSize);
}

[[gnu::always_inline]] inline bool StreamHeap::try_deallocate(Address address, Tile* run) {
  if (!mutex_.try_lock()) return false;
  const bool own = run->heap.load(std::memory_order_relaxed) == this;
  const BlockRef block = own ? live_in(run, address) : BlockRef();
  if (!block || block.uses() || fast_stream_ == kNoStream || pages_->over_limit()) [[unlikely]] {
    mutex_.unlock();
    return false;
  }
  if (cached_count_ == kMostCached || !caching_link_.listed || !fold_.lags()) [[unlikely]]
    return free_and_unlock(block);
  block.visit([&](auto& record) WEIR_REQUIRES(mutex_) {
    take_back(record);
    record.state = BlockState::cached;
    cached_[cached_count_++] = {size_of(record), BlockRef(&record)};
  });
  mutex_.unlock();
  return true;
}

}  // namespace weir
