// SPDX-License-Identifier: Apache-2.0
// The memory of one device, or of one graph pool: gives out runs of addresses whose bytes nobody
// else has.
//
// Joins the three resources: addresses (tiles.h), memory (home_pages.h, stitched_rows.h) and time.
// The placer (placer.h) makes a plan for a request (request.h): whose memory it takes (reuse.h),
// and how much is new. The plan is carried out here, with the driver's calls (page_driver.h). A
// run's bytes are the caller's for work on its stream: where they were another stream's, the
// caller's stream has been made to wait, on the GPU.
//
// Threads: self-synchronised by one lock, taken after a stream heap's and before the timelines'. No
// call under it waits for the device's work. A request and what its heap gives back before it are
// served under the lock in one go, so these calls want it held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/queued_mutex.h"
#include "core/memory/budget.h"
#include "core/memory/page_driver.h"
#include "core/memory/page_tables.h"
#include "core/memory/placer.h"
#include "core/memory/request.h"
#include "core/memory/reuse.h"
#include "core/time/remote_work.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/device.h"
#include "weir/heap_types.h"
#include "weir/result.h"

namespace weir {

class PageHeap {
 public:
  using Owner = weir::Owner;
  using Create = weir::Create;
  using UnmappedPage = weir::UnmappedPage;
  static constexpr Bytes kUnlimited = PageDriver::kUnlimited;
  // Gives idle pages of other pools, before the device is asked for new ones: about `wanted` bytes,
  // or less, and never more than `most`. Called under this page heap's lock.
  using Source = std::function<std::vector<UnmappedPage>(Bytes wanted, Bytes most)>;

  // All must outlive this. `options.limit` is of these pages alone. `of_graph_pool`: there may be
  // thousands like it, so it reserves few addresses at a time.
  PageHeap(MemoryCalls& device, Timelines& timelines, RemoteWork& remote_work, Observer& observer,
           TileIndex& index, Budget& budget, const HeapOptions& options, Source source,
           bool of_graph_pool);
  // Waits for no work. Everything is unmapped and given back, in use or not.
  ~PageHeap() = default;
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  QueuedMutex& mutex() const WEIR_RETURN_CAPABILITY(mutex_) { return mutex_; }

  // --- Runs.

  // What a heap served without asking here, since it last asked.
  struct Served {
    std::uint64_t requests = 0;
    Bytes bytes;
    std::uint64_t runs = 0;  // requests for runs; in allocate(), this one included
  };
  // A run for the request, as one tile: used, and the owner's. Null: the request's status says why.
  // Errors: out_of_memory, with Create::not_yet and never also if only new memory would serve the
  // request; device; asleep.
  Tile* allocate(Request& request, Served served) WEIR_REQUIRES(mutex_);
  // A run at exactly these addresses, if they are free. Addresses of the home row that lost their
  // memory get new pages. Errors: invalid_argument (they are not free); out_of_memory; device;
  // asleep.
  Tile* allocate_at(Request& request, Address at);
  // Adds requests that a stream heap served by itself.
  void count(Served served) WEIR_REQUIRES(mutex_);
  // The run is free. The streams that its tile's uses name may still use it.
  void free(const Owner& owner, Tile* tile) WEIR_REQUIRES(mutex_);

  // --- Pages that come and go.

  // Gives idle pages back to the driver, the largest first, until `wanted` bytes went; skips pages
  // whose work may still run. Returns how much went.
  Result<Bytes> give_to_device(Bytes wanted);
  // give_to_device() that does nothing if another thread holds the lock.
  Result<Bytes> try_give_to_device(Bytes wanted);
  // Gives idle pages to the caller, the largest first, until `wanted` bytes are given or no more
  // can be. Skips pages that graphs may use, pages with pending work, and pages with which it would
  // be more than `most`.
  std::vector<UnmappedPage> give_up(Bytes wanted, Bytes most = kUnlimited);
  // give_up() that gives nothing if another thread holds the lock: for callers whose own lock comes
  // after this one. `more`: other idle pages may be given up later.
  std::vector<UnmappedPage> try_give_up(Bytes wanted, bool& more);
  // For trim(): if the heap has no pages, drops remembered places and events.
  void tidy();
  // tidy() that also unreserves the addresses. Call only if no pointer into this heap can be used
  // again.
  void give_back_addresses();
  // Adds pages of other pools, as idle ones. Over a lowered limit they go to the driver.
  void take_in(const std::vector<UnmappedPage>& pages);
  // While `keep` holds, pages that are used are kept: never unmapped, nor given up. settle_kept()
  // ends that: those pages stay kept, or are kept no more (but for pages kept before).
  void keep_what_is_used(bool keep);
  void settle_kept(bool keep);
  // No page is kept any more; `launches` may still use those that were.
  void let_go(const FenceSet& launches);
  // let_go() that does nothing, and returns false, if another thread holds the lock.
  bool try_let_go(const FenceSet& launches);
  // Sizes of the kept pages.
  Bytes kept() const;
  // The host waits for the work that still uses idle pages; not for streams that are being
  // captured. No lock is held meanwhile.
  Status wait_for_idle_pages();
  // Sets access again for every mapping.
  Status renew_access();

  // --- What it is like.

  // A limit of this page heap alone, which has no pages. Zero: none.
  void set_limit(Bytes limit);
  // Do the page heaps of the device together hold more than its limit? Then nothing should be
  // cached. Takes no lock.
  bool over_limit() const { return budget_.excess() > 0_B; }
  // If they do, gives idle pages whose work is done back to the driver. After an error they stay
  // until the next call.
  void keep_to_limit();
  ReusePolicy reuse() const { return rules_.reuse; }
  MemoryKind memory() const { return rules_.plain ? MemoryKind::plain : MemoryKind::pages; }
  // May a request make its stream wait at all? Takes no lock.
  bool makes_waits() const { return rules_.reuse != ReusePolicy::no_wait; }
  // Does the policy take memory whose last use may still be running, however recent? Takes no lock.
  bool reuses_at_once() const { return rules_.reuse == ReusePolicy::wait; }
  // Is no request served (page_sleep.h)? Takes no lock.
  bool is_asleep() const { return asleep_.load(std::memory_order_acquire); }
  static Error asleep_error();

  // --- What there is.

  // The tile that the address lies in, if it lies in a used tile; otherwise any tile, or null.
  // Takes no lock.
  Tile* find_tile(Address address) const { return index_.find(address); }

  // The pages under a block, in order.
  std::vector<PagePart> parts(Range block) const;
  // Are these the heap's addresses: in its home row, or mapped in one of its stitched rows?
  bool has_addresses(Range run) const;
  // Sizes at this moment.
  struct Totals {
    Bytes total, leased, used;
    Bytes limit;       // of this page heap alone; zero: none
    Bytes peak_total;  // after any request, since set_limit()
    std::uint64_t mappings = 0;
    bool short_of_mappings = false;  // the last request failed for want of mappings
  };
  Totals totals() const;
  // Free bytes with fences of these streams. Whether the fences are past is not asked.
  struct FreeInUse {
    Bytes bytes;
    FenceSet uses;  // the fences of those streams
  };
  std::vector<FreeInUse> free_in_use_by(const std::vector<TimelineId>& users) const;
  // Pages by id, for a snapshot.
  std::vector<PageInfo> pages() const;
  // totals() and pages() for callers that hold the lock.
  Totals totals_locked() const WEIR_REQUIRES(mutex_);
  std::vector<PageInfo> pages_locked() const WEIR_REQUIRES(mutex_);
  // Broken invariants, named. `in_use`: the runs given out, as the stream heaps have them.
  std::vector<std::string> validate(const std::vector<Range>& in_use) const;

 private:
  friend class PageSleep;
  friend struct TestAccess;

  // place(), tried again without waits where a capture forbids a wait.
  Tile* serve(Request& request) WEIR_REQUIRES(mutex_);
  // Carries out the first of the placer's plans that can be carried out.
  Tile* place(Request& request) WEIR_REQUIRES(mutex_);
  // What place() does with a plan that takes new memory, or maps held pages.
  enum class Next { commit, pass_over, anew, fail };
  Next prepare(Request& request, const Plan& plan) WEIR_REQUIRES(mutex_);
  // Before the device is asked for new pages, or a request fails for want of them, the source is
  // asked, once. Did it give any? Then they are held.
  bool ask_source(Request& request) WEIR_REQUIRES(mutex_);
  Tile* commit(Request& request, const Plan& plan) WEIR_REQUIRES(mutex_);
  Tile* commit_segment(Request& request) WEIR_REQUIRES(mutex_);
  // Gives free bytes to the owner: makes its stream wait as needed, and marks the bytes used.
  Tile* claim(Request& request, Tile* head, Range home) WEIR_REQUIRES(mutex_);
  Tile* claim_row(Request& request, StitchedRow& row) WEIR_REQUIRES(mutex_);
  void collect_needed(Request& request, const Tile* head, Range home, FenceSet& fences)
      WEIR_REQUIRES(mutex_);
  Tile* take(const Owner& owner, Tile* head, Range home, Tile::Kind kind) WEIR_REQUIRES(mutex_);
  void release(const Owner& owner, Tile* tile) WEIR_REQUIRES(mutex_);
  // The pages that share a byte with the home range and lie whole in the run.
  Range idle_around(const Tile& head, Range home) const WEIR_REQUIRES(mutex_);
  // These pages are idle no more (`leased`), or idle again.
  void note_lease(const Owner& owner, Range pages, bool leased) WEIR_REQUIRES(mutex_);
  // The parts of a run in the home row that have no memory, as ranges of whole pages that could be
  // mapped there.
  std::vector<Range> vacant_in(Range run) const WEIR_REQUIRES(mutex_);
  std::vector<UnmappedPage> give_up_locked(Bytes wanted, Bytes most) WEIR_REQUIRES(mutex_);
  Result<Bytes> trim_locked(Bytes wanted) WEIR_REQUIRES(mutex_);
  void let_go_locked(const FenceSet& launches) WEIR_REQUIRES(mutex_);
  void keep_to_limit_locked() WEIR_REQUIRES(mutex_);
  // If no page is left, forgets the places that requests were given, and events: a program that
  // makes other requests later would hold both for ever.
  void forget_if_empty() WEIR_REQUIRES(mutex_);

  MemoryCalls& device_;
  Timelines& timelines_;
  Observer& observer_;
  TileIndex& index_;
  Budget& budget_;
  const Source source_;
  const PageRules rules_;
  std::atomic<bool> asleep_{false};  // changed under mutex_

  mutable QueuedMutex mutex_;
  PageTables tables_ WEIR_GUARDED_BY(mutex_);
  Reuse reuse_ WEIR_GUARDED_BY(mutex_);
  Placer placer_ WEIR_GUARDED_BY(mutex_);
  PageDriver driver_ WEIR_GUARDED_BY(mutex_);
  Bytes peak_total_ WEIR_GUARDED_BY(mutex_);
  bool short_of_mappings_ WEIR_GUARDED_BY(mutex_) = false;  // in the last request
  std::uint64_t retire_next_ WEIR_GUARDED_BY(mutex_) = 0;   // when to look at rows, in requests
};

}  // namespace weir
