// SPDX-License-Identifier: Apache-2.0
// The memory of one device, or of one graph pool: gives out runs of addresses whose bytes nobody
// else has.
//
// Joins the three resources: addresses (tiles.h), memory (home_pages.h, stitched_rows.h) and time.
// The placer (placer.h) makes a plan for a request (request.h): whose memory it takes (reuse.h),
// and how much is new; the commit (commit.h) carries the plan out, with the driver's calls. A run's
// bytes are the caller's for work on its stream: where they were another stream's, the caller's
// stream has been made to wait, on the GPU.
//
// Threads: self-synchronised by one lock, taken after a stream heap's and before the timelines'. No
// call under it waits for the device's work. A request and what its heap gives back before it are
// served under the lock in one go, so these calls want it held. All else is done by parts that are
// handed out with the lock: pages.idle()->take_from_pool(...) holds it during that call.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/base/queued_mutex.h"
#include "core/memory/commit.h"
#include "core/memory/mappings.h"
#include "core/memory/page_heap_state.h"
#include "core/memory/page_listing.h"
#include "core/memory/page_loans.h"
#include "core/memory/page_sleep.h"
#include "core/memory/page_supply.h"
#include "core/memory/request.h"
#include "weir/device.h"
#include "weir/heap_types.h"
#include "weir/result.h"

namespace weir {

class PageHeap {
 public:
  using Owner = weir::Owner;
  using Create = weir::Create;
  using UnmappedPage = weir::UnmappedPage;
  static constexpr Bytes kUnlimited = PageSupply::kUnlimited;
  // Gives idle pages of other pools, before the device is asked for new ones: about `wanted` bytes,
  // or less, and never more than `most`. Called under this page heap's lock.
  using Source = std::function<std::vector<UnmappedPage>(Bytes wanted, Bytes most)>;

  // All must outlive this. `options.limit` is of these pages alone. `of_graph_pool`: there may be
  // thousands like it, so it reserves few addresses at a time.
  PageHeap(MemoryCalls& device, Timelines& timelines, RemoteWork& remote_work, Observer& observer,
           TileIndex& index, Budget& budget, AddressSpace& addresses, const HeapOptions& options,
           Source source, bool of_graph_pool);
  // Waits for no work. Everything is unmapped and given back, in use or not.
  ~PageHeap() = default;
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  QueuedMutex& mutex() const WEIR_RETURN_CAPABILITY(mutex_) { return mutex_; }

  // --- Runs.

  // What a heap served since it last asked here.
  struct Served {
    std::uint64_t requests = 0;
    Bytes bytes;
    std::uint64_t runs = 0;  // requests for runs, with the one that it asks for now
  };
  // A run for the request, as one tile: used, and the owner's. Null: the request's status says why.
  // Errors: out_of_memory, with Create::never also if only new memory would serve the request, with
  // Create::not_yet if the placer prefers new memory; device; asleep.
  Tile* allocate(Request& request, Served served) WEIR_REQUIRES(mutex_);
  // A run at exactly these addresses, if they are free. Addresses of the home row that lost their
  // memory get new pages. Errors: invalid_argument (they are not free); out_of_memory; device;
  // asleep.
  Tile* allocate_at(Request& request, Address at);
  // Adds requests that a stream heap served by itself.
  void count(Served served) WEIR_REQUIRES(mutex_);
  // The run is free. The streams that its tile's uses name may still use it.
  void free(const Owner& owner, Tile* tile) WEIR_REQUIRES(mutex_) { commit_.free(owner, tile); }

  // --- Pages, with the lock held for as long as the result lives.

  // Pages that come and go. With std::try_to_lock it is false if another thread holds the lock: for
  // callers whose own lock comes after this one.
  template <class... Try>
  Locked<PageSupply> idle(Try... how) WEIR_NO_THREAD_ANALYSIS {
    return {std::unique_lock(mutex_, how...), supply_};
  }
  template <class... Try>
  Locked<PageLoans> loans(Try... how) WEIR_NO_THREAD_ANALYSIS {
    return {std::unique_lock(mutex_, how...), loans_};
  }
  Locked<PageSleep> sleep() WEIR_NO_THREAD_ANALYSIS { return {std::unique_lock(mutex_), sleep_}; }
  Locked<const PageListing> listing() const WEIR_NO_THREAD_ANALYSIS {
    return {std::unique_lock(mutex_), listing_};
  }
  // The host waits for the work that still uses idle pages; not for streams that are being
  // captured. No lock is held meanwhile.
  Status wait_for_idle_pages();
  // Sets access again for every mapping.
  Status renew_access();

  // --- What it is like. These take no lock.

  // Do the page heaps of the device together hold more than its limit? Then nothing should be
  // cached.
  bool over_limit() const { return budget_.excess() > 0_B; }
  MemoryKind memory() const { return rules().memory(); }
  // May a request make its stream wait at all?
  bool makes_waits() const { return rules().reuse != ReusePolicy::no_wait; }
  // Does the policy take memory whose last use may still be running, however recent?
  bool reuses_at_once() const { return rules().reuse == ReusePolicy::wait; }
  // Is no request served (page_sleep.h)?
  bool is_asleep() const WEIR_NO_THREAD_ANALYSIS {
    return heap_.tables.asleep.load(std::memory_order_acquire);
  }
  static Error asleep_error();
  // The tile that the address lies in, if it lies in a used tile; otherwise any tile, or null.
  Tile* find_tile(Address address) const { return index_.find(address); }

 private:
  friend struct TestAccess;

  const PageRules& rules() const WEIR_NO_THREAD_ANALYSIS { return heap_.rules; }  // never changes

  // place(), tried again without waits where a capture forbids a wait, and with a wait for other
  // processes' work where there is no other memory.
  Tile* serve(Request& request) WEIR_REQUIRES(mutex_);
  // Carries out the first of the placer's plans that can be carried out.
  Tile* place(Request& request) WEIR_REQUIRES(mutex_);
  // Before the device is asked for new pages, or a request fails for want of them, the source is
  // asked, once. Did it give any? Then they are held.
  bool ask_source(Request& request) WEIR_REQUIRES(mutex_);
  void note_timeline(TimelineId timeline) WEIR_REQUIRES(mutex_) {
    if (!heap_.tables.first) heap_.tables.first = timeline;
    if (*heap_.tables.first != timeline) heap_.tables.single_timeline = false;
  }

  Timelines& timelines_;
  const TileIndex& index_;
  Budget& budget_;
  const Source source_;

  mutable QueuedMutex mutex_;
  PageHeapState heap_ WEIR_GUARDED_BY(mutex_);
  // At the end all is unmapped first, and then released.
  PageSupply supply_ WEIR_GUARDED_BY(mutex_);
  Mappings mappings_ WEIR_GUARDED_BY(mutex_);
  Commit commit_ WEIR_GUARDED_BY(mutex_);
  PageLoans loans_ WEIR_GUARDED_BY(mutex_);
  PageSleep sleep_ WEIR_GUARDED_BY(mutex_);
  PageListing listing_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t retire_next_ WEIR_GUARDED_BY(mutex_) = 0;  // when to look at rows, in requests
};

}  // namespace weir
