// SPDX-License-Identifier: Apache-2.0
// A pool whose memory is not the heap's: a small allocator over segments that a source gives, which
// is another of PyTorch's allocators (torch.cuda.MemPool(allocator)), or the driver (memory that is
// not cached).
//
// A request of at most 1 MiB is served from a segment of 2 MiB. A pool that caches serves one of
// less than 10 MiB from a segment of 20 MiB, as PyTorch's own allocator does; any other request has
// a segment of its own, rounded up to 2 MiB. The smallest free block of the stream that is large
// enough is taken, of equals that in the oldest segment, and split; a freed block is merged with
// free neighbours. Blocks never change stream. So the same calls have the same places in the
// segments, wherever these lie: symmetric memory relies on that. Who frees a block of a pool that
// caches has made sure that other streams are done with it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "core/memory/layout.h"
#include "weir/device.h"
#include "weir/statistics.h"

namespace weir::pytorch {

// Threads: self-synchronised. The source and the listener are called with no lock held.
class SegmentPool {
 public:
  // Memory for a stream, null where there is none; and its way back.
  struct Source {
    std::function<void*(Bytes, Stream)> allocate;
    std::function<void(void*, Bytes)> free;
    // False: segments go back as soon as they are free. A free then waits for all work of the
    // device, as cudaFree() does, so that whatever is left of a segment may be used again.
    bool caches = true;
  };
  struct Block {
    Bytes bytes, requested;
    bool live = false;
  };
  struct Segment {
    Address address;
    Bytes bytes;
    Stream stream;
    bool is_small = false;            // has blocks of at most 1 MiB only
    std::map<Address, Block> blocks;  // from end to end
    std::int32_t number = 0;          // in the order in which they came
  };
  // Called after a segment came from the source, and before it goes back.
  enum class Change { gained, gives_back };
  using Listener = std::function<void(const Segment&, Change)>;

  // `device`, whose memory the source gives, must outlive this.
  SegmentPool(Source source, EventCalls& device, Listener listener);
  // Gives back what is free, after a wait; blocks that are still live stay the source's.
  ~SegmentPool();
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;

  // From now on no block is split: each has a segment of its own.
  void set_no_split() { no_split_.store(true, std::memory_order_relaxed); }

  // A free block of the stream's; null: there is none that is large enough.
  void* take_free(Bytes bytes, Stream stream);
  // The same, or of a new segment; null: the source has none. Errors: what the source throws.
  void* allocate(Bytes bytes, Stream stream);
  // The block must be live. Errors: those of the wait, if the pool does not cache.
  Status deallocate(const void* block);

  struct Found {
    Address address;
    Bytes bytes, requested;
    Stream stream;
    Address base;  // the segment
    Bytes base_bytes;
  };
  // The live block that `pointer` points into.
  std::optional<Found> find(const void* pointer) const;

  // Gives back the segments that are wholly free, after the host has waited for all work of the
  // device, as with cudaFree(). Where it can't wait, they stay.
  void empty();

  // A block that was given: what was asked for, and where it lies.
  struct Placement {
    Bytes requested;
    std::int32_t segment;  // its number
    Bytes offset;
  };
  // All placements as numbers, and the latest ones, oldest first.
  PoolLayout layout() const;
  std::deque<Placement> placements() const;

  bool has_segments() const;
  std::vector<Segment> segments() const;

 private:
  // In order of preference: of one kind and one stream, the smallest first.
  struct Free {
    bool is_small;
    std::uint64_t stream;  // Stream::id
    Bytes bytes;
    std::int32_t segment;  // its number
    Address address;
    auto operator<=>(const Free&) const = default;
  };
  using Blocks = std::map<Address, Block>;
  Segment& segment_of(Address address);
  static Free key(const Segment& segment, Blocks::const_iterator block);
  void* take(Segment& segment, Blocks::iterator block, Bytes requested);
  void put_back(const void* block);
  void put_back(std::vector<Segment> segments);

  const Source source_;
  EventCalls& device_;
  const Listener listener_;
  std::atomic<bool> no_split_{false};

  mutable std::mutex mutex_;
  std::int32_t next_number_ = 0;         // guarded by mutex_
  std::map<Address, Segment> segments_;  // guarded by mutex_
  std::set<Free> free_;                  // guarded by mutex_; the free blocks of segments_
  std::uint64_t placed_ = 0;             // guarded by mutex_, as what follows is
  Layout layout_;
  std::deque<Placement> latest_;
};

}  // namespace weir::pytorch
