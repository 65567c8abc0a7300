// SPDX-License-Identifier: Apache-2.0
// PyTorch's memory pools (of graphs, of MemPools, of warm-ups) as graph pools of one device heap.
//
// Knows nothing of PyTorch's headers: what a pool is called, and the filter that says which streams
// it serves, are plain C++.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::pytorch {

// The binding of that pool that the calling thread began last, as several may share a pool; or, as
// a capture may end in another thread, the one that anybody did. (As a reverse iterator.)
template <class Bindings, class Id>
auto latest_of(Bindings& bindings, const Id& id) {
  const auto me = std::this_thread::get_id();
  const auto mine = std::find_if(bindings.rbegin(), bindings.rend(), [&](const auto& each) {
    return each.id == id && each.begun_by == me;
  });
  if (mine != bindings.rend()) return mine;
  return std::find_if(bindings.rbegin(), bindings.rend(),
                      [&](const auto& each) { return each.id == id; });
}

// c10::MempoolId_t.
using PoolId = std::pair<unsigned long long, unsigned long long>;

// Threads: self-synchronised. The heap is called with no lock held: a request may call back
// programs that free memory, and so come here again. Errors name the pool: invalid_argument (there
// is none of that id); and those of GraphPool.
class PoolTable {
 public:
  // Called in the threads that allocate, with a stream's handle.
  using Filter = std::function<bool(void*)>;

  // Both must outlive this.
  PoolTable(DeviceHeap& heap, Device& device) : heap_(heap), device_(device) {}

  // In this process captured graphs are never destroyed, from now on.
  static void assume_graphs_leak() { graphs_leak_ = true; }

  // Pools that the calling thread opens from now on sleep with that tag; empty: with kDefaultTag.
  static void tag_new_pools(std::string tag) { new_pools_tag() = std::move(tag); }

  // One more user; the pool is opened for the first.
  void retain(PoolId id);
  // One fewer. After the last, the memory goes back once its blocks are gone.
  Status release(PoolId id);
  int uses(PoolId id) const;
  // The pool's memory is plain (MemoryKind::plain) from now on. Errors: invalid_argument, if it has
  // memory already, or requests go to it.
  Status make_plain(PoolId id);

  // One more user; and requests on streams that the filter takes go to the pool, until end().
  // `current`: the caller's stream. A capture that is to come takes no stream yet, whereas a
  // warm-up takes the caller's own: that tells them apart.
  // A capture that goes on already, and that the pool served before, is gone on with.
  Status begin(PoolId id, Filter filter, Stream current);
  // `current`: the caller's stream, where that is known.
  Status end(PoolId id, std::optional<Stream> current = std::nullopt);
  // A capture that this thread was to begin or to end on `current`, its stream, has failed: the
  // pools that it was to use serve it no more, and have one user fewer. Returns these pools.
  // Nothing happens while the stream is captured.
  std::vector<PoolId> close_failed(Stream current);

  // Free blocks of this pool may serve requests that found no memory.
  void set_use_on_oom(PoolId id, bool use);
  // Null, if there is nothing.
  void* take_from_reserve(Bytes bytes, Stream stream);

  // Gives back what the pool need not keep.
  void empty(PoolId id);

  // Of the pool with that GraphPool::id(), released or not, while anything is left of it; else
  // {0, 0}. May be asked under locks of the heap's.
  PoolId id_of(std::uint64_t graph_pool) const;

  Result<std::vector<PlacedBlock>> blocks(PoolId id) const;
  Status restore(PoolId id, std::span<const PlacedBlock> blocks);

 private:
  struct Pool {
    std::shared_ptr<GraphPool> graphs;
    int uses = 0;
    bool use_on_oom = false;
    bool plain = false;
    std::uint64_t captures = 0;  // that may have made graphs; one that was paused counts each time
  };
  struct Binding {
    PoolId id;
    PoolBinding binding;
    bool captures = false;
    std::uint64_t stream = 0;  // Stream::id of the caller's
    std::thread::id begun_by = std::this_thread::get_id();
  };

  Pool& open(PoolId id);
  // Null: there is none.
  std::shared_ptr<GraphPool> find(PoolId id) const;
  static Error none(PoolId id, const char* call);
  void forget_gone_pools();

  static std::string& new_pools_tag() {
    thread_local std::string tag;
    return tag;
  }

  inline static std::atomic<bool> graphs_leak_ = false;

  DeviceHeap& heap_;
  Device& device_;

  mutable std::mutex mutex_;
  std::map<PoolId, Pool> pools_;   // guarded by mutex_
  std::vector<Binding> bindings_;  // guarded by mutex_; the last was opened last

  mutable std::mutex ids_mutex_;         // a leaf
  std::map<std::uint64_t, PoolId> ids_;  // guarded by ids_mutex_; by GraphPool::id()
  std::size_t forgets_at_ = 64;          // guarded by ids_mutex_; so many ids
};

}  // namespace weir::pytorch
