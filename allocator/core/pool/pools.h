// SPDX-License-Identifier: Apache-2.0
// The pools of one device: its own memory, and its graph pools, each from when it is opened until
// nothing is left of it; and whose a block is.
//
// Threads: self-synchronised by one lock, taken before every other lock of the core, and never
// while a heap's is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/pool/capture_pool.h"
#include "core/pool/pool.h"
#include "core/pool/pool_bindings.h"

namespace weir {

class Pools {
 public:
  // All that is shared must outlive this.
  Pools(const HeapOptions& options, Pool::Shared shared, PoolBindings& bindings);

  const Pool::Shared& shared() const { return shared_; }
  const HeapOptions& options() const { return options_; }
  PoolBindings& bindings() const { return bindings_; }
  Pool& own() { return *own_; }
  const Pool& own() const { return *own_; }

  // `limit`, `memory`: of that pool alone. If memory of its tag sleeps, it sleeps from the start.
  std::shared_ptr<CapturePool> open(Bytes limit, std::optional<MemoryKind> memory, std::string tag,
                                    std::optional<GraphScratch> scratch);
  // The program opens no binding to the pool any more: the pool goes once nothing is left of it.
  void close(const std::shared_ptr<CapturePool>& pool);
  // Drops closed pools of which nothing is left. Looks at `most` of them: the others' turn comes.
  void drop_gone(std::size_t most = ~std::size_t{0});

  // Graph pools, in the order in which they were opened; after the device heap's own pool.
  std::vector<std::shared_ptr<CapturePool>> graph_pools() const;
  std::vector<std::shared_ptr<Pool>> all() const;
  // Idle pages that graph pools have to spare, for the device heap's own pool. Its page lock may be
  // held, so no lock of a graph pool is waited for: graph pools take theirs before it.
  std::vector<PageHeap::UnmappedPage> spare(Bytes wanted);
  // Has graph pools of another kind of memory give idle pages back to the driver while the device
  // is over its limit. Waits for no lock: whoever is at work gives the next time.
  void keep_to_limit();

  // The graph pool of that id (StreamHeap::pool()); null: there is none.
  std::shared_ptr<CapturePool> graph_pool(std::uint64_t id) const;
  // The heap whose live block begins there. Errors: unknown_pointer.
  Result<StreamHeap*> heap_of(const void* block, const char* call) const;
  std::optional<BlockInfo> find(Address address) const;
  // The pool that the live block is of.
  std::shared_ptr<Pool> pool_of(const BlockInfo& block) const;
  // Where the address lies inside a live block, the error names that block.
  Error unknown(const void* block, const char* call) const;

  // Frees the block; in a later free_due() where what uses it can't be recorded now: a stream that
  // uses it is captured, or (Trust::context) the device refuses. False: it is not live. Errors:
  // device.
  Result<bool> free(StreamHeap& heap, Address block);
  // Frees blocks whose captures have ended, and tries again what is to be tried. (Captures may
  // overlap without an end.)
  void free_due();
  // free_due(); then the host waits for all work, if a block is still to be tried again: the last
  // resort for those whose users are gone, where no event can stand for them. Errors: device.
  Status free_after_all_work();

  // The stream is about to be destroyed: nothing is allocated for it again. `beside`: another name
  // of the stream.
  Status retire(Stream stream, const std::optional<Stream>& beside);

  // Of the device: now, or (with `heaps`) at one moment of the registry.
  Statistics statistics() const;
  Statistics statistics(HeapRegistry::Heaps heaps) const WEIR_NO_THREAD_ANALYSIS;

  // No pool is opened or dropped while the lock is held.
  std::shared_lock<std::shared_mutex> hold() const { return std::shared_lock(mutex_); }
  // With the lock held.
  const std::map<std::uint64_t, std::shared_ptr<CapturePool>>& graph_pools_held() const {
    return graph_pools_;
  }

 private:
  Result<bool> free_now(StreamHeap& heap, Address block, StreamHeap::Gone gone);
  void free_all(const WaitingFrees::Blocks& due, StreamHeap::Gone gone);
  void drop_gone_locked(std::size_t most);

  const HeapOptions options_;
  const Pool::Shared shared_;
  PoolBindings& bindings_;
  const std::shared_ptr<Pool> own_;

  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<CapturePool>> graph_pools_;  // by GraphPool::id()
  std::deque<std::shared_ptr<CapturePool>> closed_;                    // of them
  std::uint64_t last_ = 0;
};

}  // namespace weir
