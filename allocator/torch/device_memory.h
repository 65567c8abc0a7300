// SPDX-License-Identifier: Apache-2.0
// One device's memory, as PyTorch sees it: a device heap, its pools, its history, its limit.
//
// Knows PyTorch's types and no driver but through Device, so that it is tested on a simulated one.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "torch/deferred_frees.h"
#include "torch/failed_frees.h"
#include "torch/history.h"
#include "torch/pools.h"
#include "torch/statistics.h"
#include "torch/streams.h"
#include "torch/uncached.h"
#include "weir/device_heap.h"

namespace weir::pytorch {

// Memory that another of PyTorch's allocators gives. Null: there is no source.
SegmentPool::Source source_of(std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> of);

// Threads: self-synchronised. Errors are c10::Error; out of memory c10::OutOfMemoryError.
class DeviceMemory {
 public:
  // Both must outlive this.
  DeviceMemory(int number, Device& device, DeviceHeap& heap);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  int number() const { return number_; }
  Device& device() { return device_; }
  DeviceHeap& heap() { return heap_; }
  // The heap whose addresses `pointer` is among; heap(), if there is none.
  DeviceHeap& heap_of(const void* pointer) {
    return uncached_.owns(pointer) ? *uncached_.heap() : heap_;
  }
  // Is it memory of this device that Weir gave out, or a live block's that a pool's source gave?
  bool owns(const void* pointer) const {
    return heap_.owns(pointer) || uncached_.owns(pointer) || pools_.find(pointer);
  }
  // The contiguous memory that a byte of a live block lies in: the block, beyond which its pages
  // may be others'; or, as PyTorch's own allocator says it, the segment that a pool's source gave.
  struct Extent {
    Address address;
    Bytes bytes;
    bool is_segment = false;  // of such a source
  };
  std::optional<Extent> extent_of(const void* pointer);
  // Would deallocate() and record_stream() look for it here?
  bool may_own(const void* pointer) {
    return heap_of(pointer).owns(pointer) || pools_.has_sources();
  }
  Pools& pools() { return pools_; }
  History& history() { return history_; }
  Streams& streams() { return streams_; }

  // Reports an earlier free that failed, instead of allocating.
  void* allocate(Bytes bytes, Stream stream);
  // False: it is none of this device's. Throws nothing: the next allocate() reports other errors.
  bool deallocate(void* block);
  // "`user` may use the block until it is freed." False: it is none of this device's. `user` is a
  // stream of `of`; of another device, the host looks for the end of its work, and the block serves
  // nobody before that.
  bool record_stream(void* block, Stream user, DeviceMemory& of);
  bool record_stream(void* block, Stream user) { return record_stream(block, user, *this); }
  // While it is off, what is allocated has memory of its own (uncached.h), whenever it is freed;
  // but for work that is captured, whose memory is its graph's. With
  // PYTORCH_NO_CUDA_MEMORY_CACHING=1 it is always off.
  void set_caching(bool on) { caching_.store(on && caching_allowed_, std::memory_order_relaxed); }
  // "Work queued so far on `user` uses the blocks that these point into." For memory of pools with
  // a source of their own it is record_stream(). Null is passed over. Errors: unknown_pointer;
  // device.
  Status fence(std::span<void* const> pointers, Stream user);
  // The same, but that what is not this device's is passed over. Where no fence can be had (a
  // capture that nobody announced, an event that the device refuses) it is record_stream(). Returns
  // the point, if all of the blocks are fenced by one that note_waited() takes. Errors: device
  // (some of the blocks are not fenced).
  Result<std::optional<Fence>> fence_around(std::span<const void* const> pointers, Stream user);
  // The device gives access to what is mapped in another way now.
  Status renew_access();

  // Of all memory, in [0, 1]. The limit that the heap had from the start holds as well: the
  // smaller of the two is the heap's, and fraction().
  void set_fraction(double fraction);
  double fraction() const;
  void on_out_of_memory(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer);

  // Called after a request found no memory, with the heap's error.
  using FailureObserver = std::function<void(const Error&)>;
  void on_failure(FailureObserver observer);

  // What is free goes back to the driver, or what of it belongs to that pool. The host waits for
  // work that still uses it.
  void empty(c10::MempoolId_t pool);

  // Makes just these blocks of the pool live (GraphPool::restore()). The host waits for frees that
  // wait.
  void restore(c10::MempoolId_t pool, std::span<const PlacedBlock> blocks);

  c10::CachingDeviceAllocator::DeviceStats stats() const;
  void reset_accumulated();
  void reset_peaks();
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> segments(c10::MempoolId_t pool);
  void set_history(const History::Options& options, bool clear);
  void track(native::AllocatorTraceTracker tracker);
  // The largest block that could be had now.
  Bytes largest() const;

 private:
  // A live block, wherever its memory is from.
  struct Found {
    Bytes bytes, requested;
    Stream stream;
    c10::MempoolId_t pool{0, 0};
    std::shared_ptr<SegmentPool> source;  // null: the heap, or
    bool is_uncached = false;             // the driver
  };

  // Does anybody want to know of a block? Else the common ways are taken. (Whether this thread is
  // profiled, frees ask only once an allocation has been.)
  bool allocation_watched() const {
    return history_.wants_entries() || pools_.has_sources() || c10::memoryProfilingEnabled() ||
           !caching_.load(std::memory_order_relaxed) || deferred_frees_.any() ||
           failed_frees_.any();
  }
  bool free_watched() const {
    return history_.wants_entries() || pools_.has_sources() || uncached_.heap() != nullptr ||
           deferred_frees_.any() ||
           (was_profiled_.load(std::memory_order_relaxed) && c10::memoryProfilingEnabled());
  }
  void tell_profiler(void* block, std::int64_t bytes);
  [[gnu::noinline]] void* allocate_reported(Bytes bytes, Stream stream);
  [[gnu::noinline]] bool deallocate_reported(void* block);
  [[gnu::noinline]] void* allocate_uncached(Bytes bytes, Stream stream);
  void* allocate_from(SegmentPool& source, Bytes bytes, Stream stream);
  void* allocate_from_heap(Bytes bytes, Stream stream);
  [[gnu::noinline]] void* take_from_reserve(Bytes bytes, Stream stream,
                                            const Result<void*>& refused);
  bool is_of_default_pool(Stream stream);
  void begin_retry();
  bool is_captured(Stream stream) const;
  // The live block that begins there.
  std::optional<Found> find(const void* block);
  void note_segment(PoolId id, const SegmentPool::Segment& segment, bool gone);
  void* counted(void* block);
  void count(const Found& block, bool live);
  Bytes held_by_sources() const;
  // The heap's, and of pools with a source of their own. (The sum of two peaks may be more than
  // there was at any one time.)
  Statistics statistics() const;
  bool give_back(void* block, const Found& found, History::Context context);
  static Result<std::optional<Fence>> fence_around(DeviceHeap& heap,
                                                   std::span<const void* const> pointers,
                                                   Stream user);
  bool note_freed(const void* block, const Status& freed);
  void finish_frees(std::vector<DeferredFrees::Done> done);
  [[noreturn]] void fail(Bytes bytes, Stream stream, const Error& error);
  void listen();

  const int number_;
  Device& device_;
  DeviceHeap& heap_;
  Streams streams_;
  History history_;
  const Bytes total_;
  const Bytes configured_limit_;  // zero: none
  Uncached uncached_{device_};
  DeferredFrees deferred_frees_;
  FailedFrees failed_frees_;
  const bool caching_allowed_;
  std::atomic<bool> caching_;
  std::atomic<bool> was_profiled_{false};

  mutable std::mutex mutex_;
  double fraction_ = 1;     // guarded by mutex_
  Counts counts_;           // guarded by mutex_
  Statistics of_sources_;   // guarded by mutex_; kGaugesOfSources of it
  Statistics before_;       // guarded by mutex_; at the last reset_accumulated()
  bool listening_ = false;  // guarded by mutex_; history_ is a sink of heap_
  std::vector<c10::cuda::CUDACachingAllocator::OutOfMemoryObserver> observers_;  // by mutex_
  FailureObserver failure_observer_;  // guarded by mutex_
  Pools pools_;  // the last: as it goes, the others hear of segments that it gives back
};

}  // namespace weir::pytorch
