// The blocks of one stream: the way in and out of the allocator for it.
//
// Small blocks are packed into slabs under this heap's lock alone; large ones, and slabs, are runs
// of the page heap. A block is live from allocate() to deallocate(), and nothing else.
//
// Threads: self-synchronised by one lock a heap, taken before all others.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/observer.h"
#include "core/page_heap.h"
#include "core/placement_memory.h"
#include "core/slabs.h"
#include "core/thread_annotations.h"
#include "core/timelines.h"
#include "weir/device_heap.h"

namespace weir {

class StreamHeap {
 public:
  StreamHeap(HeapId id, Stream stream, PageHeap& pages, Timelines& timelines, Observer& observer);
  StreamHeap(const StreamHeap&) = delete;
  StreamHeap& operator=(const StreamHeap&) = delete;

  HeapId id() const { return id_; }
  // Of the stream that it serves.
  TimelineId timeline() const;

  // A block of at least `requested` bytes, not zero. Errors: out_of_memory; device.
  Result<Address> allocate(Bytes requested);

  bool has(Address block) const;
  // The block must be there for these.
  void fence(Address block, Fence fence);
  void record_stream(Address block, TimelineId user);

  // Errors: unknown_pointer; device (a fence that record_stream asked for could not be taken). The
  // block is still live then.
  Status deallocate(Address block);

  std::optional<BlockInfo> find(Address address) const;
  std::vector<BlockInfo> blocks() const;
  HeapStatistics statistics() const;
  void reset_peaks();

  // Serves another stream from now on, if the stream it served is retired and it has no blocks.
  bool adopt(Stream stream);

  // For a check of the whole: everything as of one moment, with every heap's lock held. The runs of
  // the page heap that it holds are added to `runs`.
  void lock() WEIR_ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() WEIR_RELEASE(mutex_) { mutex_.unlock(); }
  std::vector<std::string> validate(std::vector<Range>& runs) const WEIR_REQUIRES(mutex_);
  HeapStatistics statistics_locked() const WEIR_REQUIRES(mutex_) { return fold_.statistics(); }

 private:
  friend struct TestAccess;
  struct Block {
    Bytes bytes;                    // rounded up to kGrain
    Bytes requested;                // as asked for
    FenceSet fences;                // of other streams
    std::vector<TimelineId> users;  // that record_stream named
    bool small() const { return bytes <= Slabs::kLargest; }
  };

  Result<Address> allocate_small(Bytes bytes) WEIR_REQUIRES(mutex_);
  Result<Address> allocate_run(Bytes bytes) WEIR_REQUIRES(mutex_);
  void free_small(Range block, const FenceSet& fences) WEIR_REQUIRES(mutex_);
  Status wait_for_small(Range block) WEIR_REQUIRES(mutex_);
  PageHeap::Owner owner() WEIR_REQUIRES(mutex_);
  BlockInfo info(Address at, const Block& block) const WEIR_REQUIRES(mutex_);

  const HeapId id_;
  PageHeap& pages_;
  Timelines& timelines_;
  Observer& observer_;

  mutable Mutex mutex_;
  Stream stream_ WEIR_GUARDED_BY(mutex_);
  TimelineId timeline_ WEIR_GUARDED_BY(mutex_);
  std::map<Address, Block> blocks_ WEIR_GUARDED_BY(mutex_);
  Slabs slabs_ WEIR_GUARDED_BY(mutex_);
  RequestHistory history_ WEIR_GUARDED_BY(mutex_);
  HeapFold fold_ WEIR_GUARDED_BY(mutex_);
  // Served without asking the page heap, since it was last asked.
  std::uint64_t small_requests_ WEIR_GUARDED_BY(mutex_) = 0;
  Bytes small_bytes_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
