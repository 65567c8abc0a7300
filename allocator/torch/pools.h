// SPDX-License-Identifier: Apache-2.0
// PyTorch's memory pools: those of Weir's memory (PoolTable), and those with a source of their own.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "torch/pool_table.h"
#include "torch/segment_pool.h"

namespace weir::pytorch {

// Threads: self-synchronised. Errors are c10::Error.
class Pools {
 public:
  using Id = c10::MempoolId_t;
  using Filter = std::function<bool(cudaStream_t)>;
  using CudaAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

  // Hears of the segments of pools with a source of their own, as they come and go.
  using Listener = std::function<void(Id, const SegmentPool::Segment&, SegmentPool::Change)>;

  // `heap` and `device` must outlive this.
  Pools(DeviceHeap& heap, Device& device, Listener listener)
      : device_(device), listener_(std::move(listener)), table_(heap, device) {}

  // One more user. `source`, of a new pool: where its memory comes from; null: from the heap.
  void retain(Id id, std::shared_ptr<CudaAllocator> source);
  void release(Id id);
  int uses(Id id) const;
  void set_use_on_oom(Id id, bool use);
  // As PoolTable's; an error for pools with a source of their own.
  void make_plain(Id id);
  // Changes nothing for pools of the heap's memory, which share no page with others.
  void set_no_split(Id id);

  // As PoolTable's.
  void begin(Id id, Filter filter, Stream current);
  void end(Id id, std::optional<Stream> current = std::nullopt);
  void close_failed(Stream current);

  // Do requests, or blocks, have to be looked up among pools with a source of their own?
  bool has_sources() const { return open_sources_.load(std::memory_order_relaxed) != 0; }
  // Of all bindings that take the stream the one that was begun last decides: its pool, if that has
  // a source of its own; null: the heap serves the request, from whichever pool.
  std::shared_ptr<SegmentPool> source_for(cudaStream_t stream) const;
  // A pool with a source of its own, and its id.
  struct Sourced {
    Id id;
    std::shared_ptr<SegmentPool> memory;
  };
  struct SourcedBlock : SegmentPool::Found {
    Sourced pool;
  };
  // The live block of such a pool that `pointer` points into.
  std::optional<SourcedBlock> find(const void* pointer) const;
  // A free block of a pool with set_use_on_oom(), for a request that found no memory; null: there
  // is none.
  void* take_from_reserve(Bytes bytes, Stream stream);

  // Gives back what the pool need not keep. A pool with a source keeps its memory while it is in
  // use, since graphs that were captured into it may use all of that.
  void empty(Id id);
  void empty_unused_sources();

  // Of the pool with that GraphPool::id(): {0, 0} if there is none.
  Id id_of(std::uint64_t graph_pool) const { return table_.id_of(graph_pool); }
  std::vector<Sourced> sources() const;

  std::vector<PlacedBlock> blocks(Id id) const;
  void restore(Id id, std::span<const PlacedBlock> blocks);

 private:
  struct Pool {
    std::shared_ptr<SegmentPool> memory;
    int uses = 0;  // 0: it was released, and blocks of it are live
    bool use_on_oom = false;
  };
  struct Binding {
    Id id;
    Filter filter;
    std::thread::id begun_by = std::this_thread::get_id();
  };
  bool is_sourced(Id id) const;
  Device& device_;
  const Listener listener_;
  PoolTable table_;
  mutable std::mutex mutex_;
  std::map<Id, Pool> sourced_;     // guarded by mutex_
  std::vector<Binding> bindings_;  // guarded by mutex_; of all pools, the last was begun last
  std::atomic<std::size_t> open_sources_{0};
};

}  // namespace weir::pytorch
