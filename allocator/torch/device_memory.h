// SPDX-License-Identifier: Apache-2.0
// One device's memory, as PyTorch sees it: requests, frees and uses of blocks, whichever memory
// they are of. That is a device heap's, which has pools; or that of a pool with a source of its
// own, as is the memory that is allocated while caching is switched off.
//
// Knows PyTorch's types and no driver but through Device, so that it is tested on a simulated one.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/env.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "torch/frees.h"
#include "torch/history.h"
#include "torch/pools.h"
#include "torch/statistics.h"
#include "torch/streams.h"
#include "weir/device_heap.h"

namespace weir::pytorch {

// Memory that another of PyTorch's allocators gives. Null: there is no source.
SegmentPool::Source source_of(
    const std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>& of);

// Threads: self-synchronised. Errors are c10::Error; out of memory c10::OutOfMemoryError.
class DeviceMemory {
 public:
  // A request that found no memory.
  struct Refusal {
    Bytes asked;
    Bytes allowed;              // that may be had in all
    Bytes reserved;             // of that
    Bytes free, total;          // of the device
    bool is_rejection = false;  // by PyTorch's setting throw_on_cudamalloc_oom
    const Error& error;         // the heap's own
  };
  using OutOfMemoryObserver = std::function<void(const Refusal&)>;

  // `device` and `heap` must outlive this.
  DeviceMemory(int number, Device& device, DeviceHeap& heap, OutOfMemoryObserver observer = {});
  ~DeviceMemory();

  int number() const { return number_; }
  Device& device() { return device_; }
  DeviceHeap& heap() { return heap_; }
  Pools& pools() { return pools_; }
  History& history() { return history_; }
  Streams& streams() { return streams_; }
  DeviceStatistics& statistics() { return statistics_; }
  native::DeviceStats stats() { return statistics_.stats(pools_.held()); }

  // Reports an earlier free that failed, instead of allocating.
  void* allocate(Bytes bytes, const Stream& stream);
  // False: it is none of this device's. Throws nothing: the next allocate() reports other errors.
  bool deallocate(void* block);

  // Is it memory of this device that Weir gave out, or a live block's that a pool's source gave?
  bool owns(const void* pointer) const { return heap_.owns(pointer) || pools_.find(pointer); }
  // A block, wherever its memory is from. The base is the contiguous memory that it lies in: the
  // block, beyond which its pages may be others'; or, as PyTorch's own allocator says it, the
  // segment that the source gave.
  struct Found : SegmentPool::Found {
    c10::MempoolId_t pool{0, 0};
    std::shared_ptr<SegmentPool> source;  // null: its memory is the heap's
    // As in PyTorch's own allocator, such a block is in no statistics and no history.
    bool is_uncached() const { return source != nullptr && pool == c10::MempoolId_t{0, 0}; }
  };
  // The one that `pointer` points into. A block that was freed, and whose free waits, is not live.
  std::optional<Found> find(const void* pointer);

  // "`user` may use the block until it is freed." False: it is none of this device's. `user` is a
  // stream of `of`; null: of this. For another device's stream the host looks for the end of its
  // work, and the block serves nobody before that.
  bool record_stream(void* block, Stream user, DeviceMemory* of = nullptr);
  // "Work queued so far on `user` uses the blocks that these point into." For memory that is not
  // the heap's it is record_stream(). Null is passed over. Errors: unknown_pointer; device.
  Status fence(std::span<void* const> pointers, Stream user);
  // The same, but that what is not this device's is passed over. Where no fence can be had (a
  // capture that nobody announced, an event that the device refuses) it is record_stream(). Returns
  // the point, if all of the blocks are fenced by one that note_waited() takes. Errors: device
  // (some of the blocks are not fenced).
  Result<std::optional<Fence>> fence_around(std::span<const void* const> pointers, Stream user);

  // While it is off, what is allocated has the driver's plain memory, which goes back when it is
  // freed, and is in no statistics, history, snapshot or recording, in no pool, and under no limit;
  // but for work that is captured, whose memory is its graph's. With
  // PYTORCH_NO_CUDA_MEMORY_CACHING=1 it is always off.
  void set_caching(bool on) { caching_.store(on && caching_allowed_, std::memory_order_relaxed); }
  // Of all memory, in [0, 1]. The limit that the heap had from the start holds as well: the
  // smaller of the two is the heap's, and fraction().
  void set_fraction(double fraction);
  double fraction() const;
  // What is free goes back to the driver, or what of it belongs to that pool. The host waits for
  // work that still uses it.
  void empty(c10::MempoolId_t pool);
  // Makes just these blocks of the pool live (GraphPool::restore()). The host waits for frees that
  // wait.
  void restore(c10::MempoolId_t pool, std::span<const PlacedBlock> blocks);

  // Those of that pool; of all, if it is {0, 0} (snapshot.cc).
  std::vector<native::SegmentInfo> segments(c10::MempoolId_t pool);

 private:
  [[gnu::noinline]] void* allocate_watched(Bytes bytes, const Stream& stream);
  [[gnu::noinline]] void* allocate_refused(Bytes bytes, const Stream& stream, const Error& error);
  void* allocate_from(SegmentPool& source, Bytes bytes, const Stream& stream);
  std::shared_ptr<SegmentPool> source_for(const Stream& stream);
  void begin_retry();
  [[noreturn]] void fail(Bytes bytes, const Stream& stream, const Error& error);
  bool is_rejected(Bytes bytes, Bytes reserved) const;

  [[gnu::noinline]] bool deallocate_watched(void* block);
  bool give_back(void* block, const Found& found, History::Context context);
  bool note_freed(const void* block, const Status& freed);
  void finish_frees(const std::vector<void*>& done);

  const int number_;
  Device& device_;
  DeviceHeap& heap_;
  const OutOfMemoryObserver observer_;
  Streams streams_;
  History history_;
  DeviceStatistics statistics_;
  const Bytes total_;
  const Bytes configured_limit_;  // zero: none
  std::atomic<double> fraction_{1};
  std::atomic<std::uint64_t> uncached_bytes_{0};
  Frees frees_{heap_.options().addresses == Addresses::any};
  // As PyTorch's own allocator reads it.
  const bool caching_allowed_ = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") != true;
  std::atomic<bool> caching_{caching_allowed_};
  std::atomic<bool> was_profiled_{false};
  Pools pools_;  // the last: as it goes, the others hear of segments that it gives back
};

}  // namespace weir::pytorch
