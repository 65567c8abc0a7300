// PyTorch's memory pools (of graphs, of MemPools, of warm-ups) as graph pools of one device heap.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/source_pool.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::pytorch {

// Threads: self-synchronised. Errors are c10::Error.
class Pools {
 public:
  using Id = c10::MempoolId_t;
  using Filter = std::function<bool(cudaStream_t)>;
  using CudaAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

  // Both must outlive this.
  Pools(DeviceHeap& heap, Device& device) : heap_(heap), device_(device) {}

  // One more user. `source`, of a new pool: where its memory comes from; null: from the heap.
  void retain(Id id, std::shared_ptr<CudaAllocator> source);
  // One fewer. After the last, the memory goes back once its blocks are gone.
  void release(Id id);
  int uses(Id id) const;
  void set_use_on_oom(Id id, bool use);
  void set_no_split(Id id);

  // One more user; and requests on streams that the filter takes go to the pool, until end(). The
  // filter is called in the threads that allocate. `current`: the caller's stream. A capture that
  // is to come takes no stream yet, whereas a warm-up takes the caller's own: that tells them
  // apart.
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
  Id id_of(std::uint64_t graph_pool) const;
  std::optional<std::uint64_t> graph_pool_of(Id id) const;
  std::vector<std::pair<Id, const SourcePool*>> sources() const;

  std::vector<PlacedBlock> blocks(Id id) const;
  void restore(Id id, std::span<const PlacedBlock> blocks);

 private:
  struct Pool {
    std::unique_ptr<GraphPool> graphs;
    std::shared_ptr<SourcePool> source;
    int uses = 0;
    bool use_on_oom = false;
    std::uint64_t captures = 0;  // that may have made graphs
  };
  struct Route {
    Id id;
    PoolRoute route;  // of pools without a source
    bool captures = false;
    Filter filter;
  };

  Pool& open(Id id, std::shared_ptr<CudaAllocator> source);
  Pool& find(Id id, const char* call);
  const Pool& find(Id id, const char* call) const;

  DeviceHeap& heap_;
  Device& device_;

  mutable std::mutex mutex_;
  std::map<Id, Pool> pools_;         // guarded by mutex_
  std::vector<Route> routes_;        // guarded by mutex_; the last is asked first
  std::map<std::uint64_t, Id> ids_;  // guarded by mutex_; by GraphPool::id()
  std::vector<std::shared_ptr<SourcePool>> old_sources_;  // guarded by mutex_
  std::atomic<int> open_sources_{0};  // pools with a source, gone ones with blocks included
};

}  // namespace weir::pytorch
