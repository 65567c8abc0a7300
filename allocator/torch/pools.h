// SPDX-License-Identifier: Apache-2.0
// PyTorch's memory pools (of graphs, of MemPools, of warm-ups) of one device: their users, the
// requests that go to them, and where their memory comes from. A pool is a graph pool of the device
// heap; a MemPool with an allocator of its own is a SegmentPool.
//
// Knows nothing of PyTorch's headers: the library for plugged-in allocators has pools, too.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torch/segment_pool.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

struct CUstream_st;

namespace weir::pytorch {

// c10::MempoolId_t.
using PoolId = std::pair<unsigned long long, unsigned long long>;

// Threads: self-synchronised. The heap, sources and the listener are called with no lock held: a
// request may call back programs that free memory, and so come here again. Errors name the pool:
// invalid_argument (there is none of that id); and those of GraphPool. What a source throws passes
// through.
class Pools {
 public:
  // Called in the threads that allocate, with a stream's handle.
  using Filter = std::function<bool(CUstream_st*)>;
  // Hears of the segments of pools with a source, as SegmentPool's listener does.
  using Listener = std::function<void(PoolId, const SegmentPool::Segment&, SegmentPool::Change)>;

  // `heap` and `device` must outlive this. Without a listener there may be no sources.
  Pools(DeviceHeap& heap, Device& device, Listener listener = {})
      : heap_(heap), device_(device), listener_(std::move(listener)) {}

  DeviceHeap& heap() { return heap_; }

  // In this process captured graphs are never destroyed, from now on.
  static void assume_graphs_leak() { graphs_leak_ = true; }
  // Pools that the calling thread opens from now on sleep with that tag; empty: with kDefaultTag.
  static void tag_new_pools(std::string tag) { new_pools_tag_ = std::move(tag); }

  // Adds a user; the first opens the pool. `source`, of a new pool: where its memory comes from;
  // empty: from the heap.
  void retain(PoolId id, SegmentPool::Source source = {});
  // Takes a user away. After the last, memory goes back once its blocks are gone; that of a source,
  // where blocks are live still, by empty().
  Status release(PoolId id);
  int uses(PoolId id) const { return pool(id).uses; }
  // Makes the pool's memory plain (MemoryKind::plain) from now on. Errors: invalid_argument, if it
  // has memory already, or requests go to it, or it has a source.
  Status make_plain(PoolId id);
  // Of the heap's memory; null: there is none of that id.
  std::shared_ptr<GraphPool> graphs(PoolId id) const { return pool(id).graphs; }
  // Free blocks of this pool may serve requests that found no memory.
  void set_use_on_oom(PoolId id, bool use);
  // Blocks of a source are not split. Pools of the heap's memory share no page with others anyway.
  void set_no_split(PoolId id);

  // Adds a user; and requests on streams that the filter takes go to the pool, until end(). Of
  // several pools whose filters take a stream, the one that was begun last serves it.
  // `current`: the caller's stream. A capture that is to come takes no stream yet, whereas a
  // warm-up takes the caller's own: that tells them apart.
  // A capture that goes on already, and that the pool served before, is gone on with. Errors:
  // invalid_argument (a capture, while a scope that is none uses the pool); those of GraphPool.
  Status begin(PoolId id, Filter filter, Stream current);
  // Ends what the calling thread began last for the pool; or, as a capture may end in another
  // thread, what any thread did. `current`: the caller's stream, where that is known.
  Status end(PoolId id, std::optional<Stream> current = std::nullopt);
  // A capture that this thread was to begin or to end on `current`, its stream, has failed: the
  // pools that it was to use serve it no more, and have one user fewer. Nothing happens while the
  // stream is captured.
  void close_failed(Stream current);

  // Does any pool have a source? Then requests and blocks have to be looked up here. Takes no lock.
  bool has_sources() const { return has_sources_.load(std::memory_order_relaxed); }
  // The pool that serves the stream's requests, if it has a source; null: the heap serves them.
  std::shared_ptr<SegmentPool> source_for(Stream stream) const;
  // A pool that PyTorch does not know, of the id {0, 0}; made with that source if there is none.
  std::shared_ptr<SegmentPool> uncached(const SegmentPool::Source& source);
  using Source = std::pair<PoolId, std::shared_ptr<SegmentPool>>;
  std::vector<Source> sources() const;
  // The live block of a source that `pointer` points into, and its pool.
  std::optional<std::pair<SegmentPool::Found, Source>> find(const void* pointer) const;
  // A free block of a pool with set_use_on_oom(); null: there is none.
  void* take_from_reserve(Bytes bytes, Stream stream);

  // Gives back what the pool need not keep. A pool with a source keeps its memory while it is in
  // use, since graphs that were captured into it may use all of that.
  void empty(PoolId id);
  void empty_sources();

  // The pool with that GraphPool::id(), released or not, while anything is left of it; else {0, 0}.
  // May be asked under locks of the heap's.
  PoolId id_of(std::uint64_t graph_pool) const;

  // What each pool of the heap's memory holds, and held at most.
  using Held = std::map<PoolId, std::pair<Bytes, Bytes>>;
  Held held() const;

  // As GraphPool's. Blocks of sources are not among them.
  Result<std::vector<PlacedBlock>> blocks(PoolId id) const;

 private:
  struct Pool {
    std::shared_ptr<GraphPool> graphs;      // of the heap's memory: one of the two
    std::shared_ptr<SegmentPool> segments;  // of a source's
    int uses = 0;                           // 0: of a source, and blocks of it are live
    bool use_on_oom = false;
    bool plain = false;
    std::uint64_t captures = 0;  // that may have made graphs; one that was paused counts each time
  };
  struct Binding {
    PoolId id;
    Filter filter;
    PoolBinding binding;
    bool captures = false;
    std::uint64_t stream = 0;  // Stream::id of the caller's
    std::thread::id begun_by = std::this_thread::get_id();
  };
  using Bindings = std::vector<Binding>;

  Pool& open(PoolId id);
  Pool& open(PoolId id, SegmentPool::Source source);
  Bindings::iterator latest_of(PoolId id);
  // The pool as it is now; without memory of either kind, there is none.
  Pool pool(PoolId id) const;
  static Error none(PoolId id, const char* call);
  void forget_gone_pools();

  inline static std::atomic<bool> graphs_leak_ = false;
  inline static thread_local std::string new_pools_tag_;

  DeviceHeap& heap_;
  Device& device_;
  const Listener listener_;
  std::atomic<bool> has_sources_{false};

  mutable std::mutex mutex_;
  std::map<PoolId, Pool> pools_;  // guarded by mutex_
  std::vector<Source> sources_;   // guarded by mutex_; those of pools_ that have a source
  Bindings bindings_;             // guarded by mutex_; the last was begun last

  mutable std::mutex ids_mutex_;         // a leaf
  std::map<std::uint64_t, PoolId> ids_;  // guarded by ids_mutex_; by GraphPool::id()
  std::size_t forgets_at_ = 64;          // guarded by ids_mutex_; so many ids
};

// Are launches of graphs that the calling thread begins to capture from now on told of, by
// begin_launch()? A pool with a graph whose launches are not lends nothing.
void tell_of_launches(bool told);
// GraphPool::begin_launch() and keep_scratch(). Null, or nothing, of a pool that is not known, or
// no graph pool of the heap's, and where nothing is lent; within a capture, after which the pool
// lends nothing.
Result<std::unique_ptr<GraphLaunch>> begin_launch(Pools& pools, PoolId id, Stream stream);
Status keep_scratch(Pools& pools, PoolId id, bool keep);

// Those of one device: of both libraries of the Python package, the backend and the one for
// plugged-in allocators, each has its own. Errors: Exception (`what` names the call), where Weir is
// not PyTorch's allocator yet.
Pools& pools_of(int device, const char* what);

// A pool of the heap, with pages that are idle, or the driver's, and that it shares with nobody;
// and its binding, while which lives requests of the calling thread get memory that nobody uses any
// more, on streams that are not being captured. Begun and ended in the same thread. Blocks may
// outlive it.
//
// Else a request may get memory that its stream waits for, on the GPU, and only that stream may use
// it then. PyTorch has tensors that it writes on other streams without a wait: the seed and the
// offset of the random numbers of all graphs, made as the first capture begins, and written as each
// later one begins and as graphs are launched.
using IdleMemory = std::pair<std::unique_ptr<GraphPool>, PoolBinding>;
// `heap` must outlive it. Errors: as GraphPool::serve().
Result<IdleMemory> begin_idle_memory(DeviceHeap& heap);

}  // namespace weir::pytorch
