// PyTorch's memory pools: those of Weir's memory (PoolTable), and those with a source of their own.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "torch/pool_table.h"
#include "torch/source_pool.h"

namespace weir::pytorch {

// Threads: self-synchronised. Errors are c10::Error.
class Pools {
 public:
  using Id = c10::MempoolId_t;
  using Filter = std::function<bool(cudaStream_t)>;
  using CudaAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

  // Both must outlive this.
  Pools(DeviceHeap& heap, Device& device) : table_(heap, device) {}

  // One more user. `source`, of a new pool: where its memory comes from; null: from the heap.
  void retain(Id id, std::shared_ptr<CudaAllocator> source);
  void release(Id id);
  int uses(Id id) const;
  void set_use_on_oom(Id id, bool use);

  // As PoolTable's.
  void begin(Id id, Filter filter, Stream current);
  void end(Id id);

  // Do requests, or blocks, have to be looked up among pools with a source of their own?
  bool has_sources() const { return open_sources_.load(std::memory_order_relaxed) != 0; }
  // Where a request goes whose pool has a source of its own, if it does.
  SourcePool* source_for(cudaStream_t stream) const;
  // The pool that holds `block`, if it has a source of its own. (Pools with a source that are gone
  // hold on to it while blocks live.)
  SourcePool* source_of(const void* block) const;
  // What a request that found no memory may use: null, if there is nothing.
  void* allocate_from_reserve(Bytes bytes, Stream stream);

  // Gives back what the pool need not keep.
  void empty(Id id);
  void empty_all_sources();

  // Of the pool with that GraphPool::id(): {0, 0} if there is none.
  Id id_of(std::uint64_t graph_pool) const { return table_.id_of(graph_pool); }
  std::vector<std::pair<Id, std::shared_ptr<const SourcePool>>> sources() const;
  // By pools with a source of their own, in use or not.
  Bytes held_by_sources() const;

  std::vector<PlacedBlock> blocks(Id id) const;
  void restore(Id id, std::span<const PlacedBlock> blocks);

 private:
  struct Sourced {
    std::shared_ptr<SourcePool> memory;
    int uses = 0;
    bool use_on_oom = false;
  };
  bool is_sourced(Id id) const;
  void forget_old_sources();

  PoolTable table_;
  mutable std::mutex mutex_;
  std::map<Id, Sourced> sourced_;                         // guarded by mutex_
  std::vector<std::pair<Id, Filter>> filters_;            // guarded by mutex_; of sourced_
  std::vector<std::shared_ptr<SourcePool>> old_sources_;  // guarded by mutex_
  std::atomic<std::size_t> open_sources_{0};
};

}  // namespace weir::pytorch
