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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/heap/block.h"
#include "core/heap/caching_heaps.h"
#include "core/heap/run_index.h"
#include "core/heap/slabs.h"
#include "core/memory/page_heap.h"
#include "core/placement/placement_cache.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/heap_types.h"

namespace weir {

class CapturePool;
struct PlacedBlock;

class StreamHeap {
 public:
  // All must outlive this. `pool`: whose heap this is, if not the device heap's own; there is no
  // fast path to it then.
  StreamHeap(HeapId id, Stream stream, PageHeap& pages, Timelines& timelines, Observer& observer,
             CachingHeaps<StreamHeap>& caching_heaps, CapturePool* pool = nullptr);
  StreamHeap(const StreamHeap&) = delete;
  StreamHeap& operator=(const StreamHeap&) = delete;

  // If it has no memory, what finds blocks by their addresses gives back its own.
  void shrink() {
    const MutexLock lock(mutex_);
    runs_.shrink();
  }

  HeapId id() const { return id_; }
  CapturePool* capture_pool() const { return graph_pool_; }
  MemoryKind memory() const { return pages_.memory(); }

  // The fast paths, which serve nearly every call of a program that frees and asks again: the
  // newest cached block is given out, a freed one is cached. No address, or false: nothing
  // is done, and the calls below decide. If the fast path is open and no block fits,
  // allocate_cached() sets `misses` and leaves the heap locked: the caller calls
  // allocate_after_miss(), or unlock().
  Address allocate_cached(Bytes requested, std::uint64_t stream,
                          bool& misses) WEIR_NO_THREAD_ANALYSIS;
  // Serves the request as allocate() does, and unlocks the heap.
  Address allocate_after_miss(Bytes requested, Status& status,
                              PageHeap::Create create) WEIR_NO_THREAD_ANALYSIS;
  bool keep_in_cache(Address block);

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

  // Is `block` live? The next four change nothing, and say so, if not.
  bool has(Address block) const;
  bool fence(Address block, Fence fence);
  // Fences the live block that lies around the address, unless that is `fenced` already. Its start;
  // null if there is none.
  Address fence_around(Address address, Fence fence, Address fenced);
  // A fence on the work queued so far on `user`'s stream; none is taken on the block's own.
  // Errors: device.
  Result<bool> fence(Address block, TimelineId user);
  bool record_stream(Address block, TimelineId user);
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
  void reset_peaks();

  // Gives back the blocks that are cached; returns whether there were any.
  bool give_back_cached();
  // While requests may have to go elsewhere, every call has to ask: the fast paths are closed.
  void allow_fast_paths(bool allowed);
  // The page heap fell asleep, or woke: whoever was served before that has been, once this returns.
  void note_asleep();
  // The stream is retired: nothing is allocated for it any more.
  void close();
  // Serves another stream from now on, if it is closed and has no blocks.
  bool adopt(Stream stream);
  // Says that it serves its stream from now on: for the pool of that id, or (0) for none.
  void announce(std::uint64_t pool);
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
    while (cached_count_ > 0) give_back(cached_[--cached_count_]);
    return true;
  }

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kNoStream = ~std::uint64_t{0};
  // Cached blocks, at most.
  static constexpr std::size_t kMostCached = 8;
  // The least run that is no slab: what a small block has that lies in no slab.
  static constexpr Bytes kAlone = Slabs::kLargest + kGrain;

  static bool is_small(const Block& block) { return block.size <= Slabs::kLargest; }

  Block* find_cached(Bytes bytes) const WEIR_REQUIRES(mutex_);
  bool suits(const Block& block) WEIR_REQUIRES(mutex_);
  void take_from_cache(Block* block) WEIR_REQUIRES(mutex_);
  Status wait_and_take(Block& block) WEIR_REQUIRES(mutex_);
  Address allocate_locked(Bytes requested, Status& status, PageHeap::Create create)
      WEIR_REQUIRES(mutex_);
  // Whether the peaks must be raised.
  bool give_out(Block& block, Bytes requested) WEIR_REQUIRES(mutex_);
  Address raise_peaks(Address allocated);
  void set_stream(Stream stream) WEIR_REQUIRES(mutex_);
  PageHeap::Served served_since_asked() WEIR_REQUIRES(mutex_);
  // Null: `status` says why.
  Block* allocate_small(Bytes bytes, Status& status) WEIR_REQUIRES(mutex_);
  Block* allocate_run(Bytes bytes, bool for_slab, Status& status) WEIR_REQUIRES(mutex_);
  Block* add_run(Range run, RequestHistory::Name name, bool for_slab) WEIR_REQUIRES(mutex_);
  Block* claim_run(Range run, bool for_slab, Status& status) WEIR_REQUIRES(mutex_);
  // The live block that begins at `address`; `run`: the last that begins there or before.
  static Block* live_in(Block* run, Address address);
  Block* live_at(Address address) const WEIR_REQUIRES(mutex_) {
    return live_in(runs_.at_or_before(address), address);
  }
  Block* block_around(Address address) const WEIR_REQUIRES(mutex_);
  void add_fence(Block& block, Fence fence) WEIR_REQUIRES(mutex_);
  Status fence_users(Block& block, Gone gone) WEIR_REQUIRES(mutex_);
  // Makes the stream wait for `fences`.
  Status wait(const FenceSet& fences) WEIR_REQUIRES(mutex_);
  // Is it only that this memory can't be waited for?
  static bool is_in_the_way(const Status& status) {
    return !status && status.error().code() == ErrorCode::capture;
  }
  // The run of a new slab.
  Block* add_slab(Status& status) WEIR_REQUIRES(mutex_);
  Block* allocate_settled(Bytes bytes, Status& status) WEIR_REQUIRES(mutex_);
  // The stream was made to wait for this.
  void note_waited(const FenceSet& fences) WEIR_REQUIRES(mutex_);
  bool is_captured_after_a_wait() WEIR_REQUIRES(mutex_);
  // Is nobody to be waited for, as far as is known or can be seen now?
  bool is_settled(const FenceSet& fences) WEIR_REQUIRES(mutex_);
  Status wait_for_slab_bytes(const Block& block) WEIR_REQUIRES(mutex_);
  Status wait_for_cached(Block& block) WEIR_REQUIRES(mutex_);

  bool may_cache() const WEIR_REQUIRES(mutex_) {
    return serves_ != kNoStream && !pages_.over_limit() && !pages_.is_asleep();
  }
  void take_back(Block& block) WEIR_REQUIRES(mutex_);
  void put_in_cache(Block* block) WEIR_REQUIRES(mutex_);
  // The block goes back; where a run goes with it, to the page heap.
  void give_back(Block* block) WEIR_REQUIRES(mutex_);
  void give_back_cached_under_page_lock() WEIR_REQUIRES(mutex_, pages_.mutex());
  // The block itself, or its slab if it was the last there; what must be waited for.
  std::optional<Slabs::Emptied> run_of_last(Block* block) WEIR_REQUIRES(mutex_);
  void give_back_run(const Slabs::Emptied& emptied) WEIR_REQUIRES(mutex_, pages_.mutex());
  // Whose cached blocks are asked for: only those of heaps that this thread put on the list, or
  // that served nothing since they were last looked at; or everyone's. Returns whether all did.
  enum class Others { at_rest, all };
  // Releases and retakes the page heap's lock now and then, if there are many.
  bool have_others_give_back(Others whose) WEIR_REQUIRES(mutex_, pages_.mutex());
  Result<Address> find_run(Bytes bytes, RequestHistory::Name name) WEIR_REQUIRES(mutex_);

  // Calls visit(block) for every large block and every tile of a slab, by address.
  template <class Visitor>
  void for_each_block(Visitor&& visit) const WEIR_REQUIRES(mutex_) {
    runs_.for_each([&](const Block* run) WEIR_NO_THREAD_ANALYSIS {
      if (run->slab == nullptr) return visit(*run);
      for (const Block* tile = run->slab->first[0]; tile; tile = tile->after) visit(*tile);
    });
  }
  PageHeap::Owner owner() WEIR_REQUIRES(mutex_);
  BlockInfo info(const Block& block) const WEIR_REQUIRES(mutex_);
  void record(EventKind kind, Block& block) WEIR_REQUIRES(mutex_);
  void validate_block(const Block& block, std::vector<std::string>& broken) const
      WEIR_REQUIRES(mutex_);

  const HeapId id_;
  PageHeap& pages_;
  Timelines& timelines_;
  Observer& observer_;
  CachingHeaps<StreamHeap>& caching_heaps_;
  CapturePool* const graph_pool_;

  alignas(64) mutable Mutex mutex_;
  std::uint64_t serves_ WEIR_GUARDED_BY(mutex_);  // Stream::id, or kNoStream once it is closed
  // For the fast paths: kNoStream and 0 where every call is recorded, or the heap is closed.
  std::uint64_t fast_stream_ WEIR_GUARDED_BY(mutex_);
  std::uint32_t fast_room_ WEIR_GUARDED_BY(mutex_);
  bool fast_paths_ WEIR_GUARDED_BY(mutex_) = true;
  bool recording_ WEIR_GUARDED_BY(mutex_);
  // Where uses need not be told: what the stream was made to wait for, until that is seen to be
  // over. A graph is not ordered behind it, though the stream is; so every request asks meanwhile
  // whether the stream is in a capture that nobody announced.
  FenceSet waited_for_ WEIR_GUARDED_BY(mutex_);
  std::uint32_t asked_meanwhile_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint32_t cached_count_ WEIR_GUARDED_BY(mutex_) = 0;
  std::array<Block*, kMostCached> cached_
      WEIR_GUARDED_BY(mutex_);                   // the first cached_count_, oldest first
  CachingHeaps<StreamHeap>::Link caching_link_;  // `listed`: guarded by mutex_
  HeapFold fold_ WEIR_GUARDED_BY(mutex_);
  RunIndex runs_ WEIR_GUARDED_BY(mutex_);
  BlockPool block_records_ WEIR_GUARDED_BY(mutex_);
  Slabs slabs_ WEIR_GUARDED_BY(mutex_);
  Stream stream_ WEIR_GUARDED_BY(mutex_);
  TimelineId timeline_ WEIR_GUARDED_BY(mutex_);
  std::uint32_t epoch_ WEIR_GUARDED_BY(mutex_) = 0;
  PageHeap::Create create_ WEIR_GUARDED_BY(mutex_) = PageHeap::Create::may;  // in this request
  RequestHistory history_ WEIR_GUARDED_BY(mutex_);                           // of runs
  PageHeap::Served asked_ WEIR_GUARDED_BY(mutex_);  // in all, when the page heap was last asked
};

// The newest of that size; null if there is none.
inline Block* StreamHeap::find_cached(Bytes bytes) const {
  for (std::uint32_t i = cached_count_; i-- > 0;) {
    if (cached_[i]->size == bytes) return cached_[i];
  }
  return nullptr;
}

// Memory that is only cached is used again by the request that it was placed for, when the
// program repeats it: for any other there may be a place that costs less. So what is kept changes
// nothing in where blocks lie. (A slab without live blocks is such memory, too.) Notes the request,
// if it is one for a run.
inline bool StreamHeap::suits(const Block& block) {
  if (block.slab == nullptr) return history_.note_if(block.size, block.name);
  return block.slab->live > 0_B || history_.note_if(Slab::kSize, block.slab->run->name);
}

inline void StreamHeap::take_from_cache(Block* block) {
  Block** place = &cached_[--cached_count_];
  for (Block* moved = *place; moved != block;) moved = std::exchange(*--place, moved);
}

inline bool StreamHeap::give_out(Block& block, Bytes requested) {
  block.state = Block::State::live;
  block.requested = requested;
  if (block.slab != nullptr) block.slab->live += block.size;
  return fold_.allocate(block.size, requested);
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
    Block* const block = cached_[cached_count_ - 1];
    if (block->size == round_up(requested, kGrain) && block->uses == nullptr && suits(*block))
        [[likely]] {
      --cached_count_;
      const bool rises = give_out(*block, requested);
      const Address at = block->begin;
      mutex_.unlock();
      return rises ? raise_peaks(at) : at;
    }
  }
  misses = true;
  return {};
}

inline Block* StreamHeap::live_in(Block* run, Address address) {
  if (run == nullptr) return nullptr;
  if (run->slab != nullptr && run->state == Block::State::slab) {
    if (address >= run->end()) return nullptr;
    run = run->slab->tile_at(address);
  }
  return run->begin == address && run->state == Block::State::live ? run : nullptr;
}

// The block is live no more, for the statistics and the history.
inline void StreamHeap::take_back(Block& block) {
  fold_.deallocate(block.size, block.requested);
  if (block.slab == nullptr) {
    history_.subtract(block.size);
  } else if ((block.slab->live -= block.size) == 0_B) {
    history_.subtract(Slab::kSize);
  }
}

[[gnu::always_inline]] inline bool StreamHeap::keep_in_cache(Address address) {
  if (!mutex_.try_lock()) return false;
  Block* const block = live_in(runs_.at_or_before_near(address), address);
  const bool keeps = block != nullptr && block->uses == nullptr && cached_count_ < fast_room_ &&
                     caching_link_.listed && !pages_.over_limit() && !fold_.owes();
  if (keeps) [[likely]] {
    take_back(*block);
    block->state = Block::State::cached;
    cached_[cached_count_++] = block;
  }
  mutex_.unlock();
  return keeps;
}

}  // namespace weir
