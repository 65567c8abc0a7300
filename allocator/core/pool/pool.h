// SPDX-License-Identifier: Apache-2.0
// Memory that streams share: a page heap, a stream heap for each stream that asks, and their time.
//
// The device heap's own memory is one of these, on the device itself. A graph pool is another, on
// the events of its captures (PoolEvents), with rules for captures and graphs (CapturePool).
//
// Threads: self-synchronised. The lock of its streams is taken before the registry's and the stream
// heaps'; a stream that was found once needs no lock.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/thread_annotations.h"
#include "core/heap/caching_heaps.h"
#include "core/heap/heap_registry.h"
#include "core/heap/stream_heap.h"
#include "core/memory/budget.h"
#include "core/memory/page_heap.h"
#include "core/pool/sparing_pools.h"
#include "core/pool/waiting_frees.h"
#include "core/time/open_captures.h"
#include "core/time/remote_work.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/heap_types.h"

namespace weir {

class Pool {
 public:
  // What all pools of a device share.
  struct Shared {
    Device& device;
    Observer& observer;
    HeapRegistry& registry;
    Budget& budget;
    AddressSpace& addresses;
    OpenCaptures& captures;
    RemoteWork& remote_work;
    SparingPools& sparing;
    SparingPools& lending;  // graphs' scratch
    WaitingFrees& waiting;
  };
  // All must outlive the pool. `id`: GraphPool::id(), 0 of the device heap's own. `tag`: what its
  // memory sleeps with. `events`: of its streams. `source`: where idle pages of other pools are had
  // from. `eager`: of a graph pool, the device heap's own pool, which idle pages come from and go
  // back to; null of that pool.
  Pool(std::uint64_t id, std::string tag, EventCalls& events, Shared shared,
       const HeapOptions& options, PageHeap::Source source, Pool* eager = nullptr);
  virtual ~Pool() = default;

  std::uint64_t id() const { return id_; }
  const std::string& tag() const { return tag_; }
  MemoryKind memory() const { return pages_.memory(); }
  bool is_told() const { return timelines_.trust() == Trust::told; }
  Timelines& timelines() { return timelines_; }
  const Timelines& timelines() const { return timelines_; }
  PageHeap& pages() { return pages_; }
  const PageHeap& pages() const { return pages_; }
  CachingHeaps<HeapMemory>& caching_heaps() { return caching_heaps_; }

  // A stream, and the heap that serves it.
  struct Member {
    Stream stream;
    StreamHeap* heap = nullptr;
    std::uint32_t epoch = 0;  // that `heap` serves; of graph pools, whose lock guards it
  };
  // The heap of the stream, which stays while the pool does. A stream that has none gets a new one,
  // or one whose stream was retired. Error: invalid_argument (the stream was retired).
  Result<StreamHeap*> heap_of(Stream stream);
  // The same, for who excludes retire() (a graph pool, by its lock): the member goes with its
  // stream.
  Result<Member*> member_of(Stream stream);
  // The heap that serves the stream of that id; null: none.
  StreamHeap* find(std::uint64_t stream) const;
  bool has_retired() const;
  // The heap that has this live block; null: none.
  StreamHeap* heap_with(Address block) const;
  // The stream is about to be destroyed: nothing is allocated for it again.
  virtual Status retire(Stream stream);

  // Calls visit(member) for each stream that is served, in the order of their arrival. (Not
  // analysed: `visit` may need its caller's lock.)
  template <class Visit>
  void for_each_member(Visit&& visit) WEIR_NO_THREAD_ANALYSIS {
    const std::shared_lock lock(mutex_);
    for (Member* const member : members_) visit(*member);
  }
  template <class Visit>
  void for_each_member(Visit&& visit) const WEIR_NO_THREAD_ANALYSIS {
    const std::shared_lock lock(mutex_);
    for (const Member* const member : members_) visit(*member);
  }
  // Calls visit(heap) for each heap, those of retired streams too.
  template <class Visit>
  void for_each_heap(Visit&& visit) const WEIR_NO_THREAD_ANALYSIS {
    const std::shared_lock lock(mutex_);
    for (const Member* const member : members_) visit(*member->heap);
    for (StreamHeap* const heap : retired_) visit(*heap);
  }
  PoolLayout layout() const;
  // It is about to go, and no block is live: its heaps are the registry's again.
  void disband();
  void give_back_cached() const;
  // No stream gets a heap, or is retired, while the lock is held.
  std::shared_lock<std::shared_mutex> hold_members() const { return std::shared_lock(mutex_); }

  // At one moment (HeapRegistry::at_one_moment), with members held since before. `runs`: what its
  // heaps hold of the page heap.
  std::vector<std::string> validate(const std::vector<Range>& runs) const WEIR_NO_THREAD_ANALYSIS;

 protected:
  const Shared shared_;
  Pool* const eager_;

 private:
  Member* known(Stream stream);
  Result<Member*> make(Stream stream);  // mutex_ is held alone

  const std::uint64_t id_;
  const std::string tag_;
  Timelines timelines_;
  PageHeap pages_;
  CachingHeaps<HeapMemory> caching_heaps_;

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, Member> by_stream_;  // by Stream::id
  std::vector<Member*> members_;                         // the same, in the order of their arrival
  std::uint64_t streams_ = 0;                            // that arrived
  PoolLayout layout_of_retired_;
  std::vector<StreamHeap*> retired_;  // their streams are gone
};

}  // namespace weir
