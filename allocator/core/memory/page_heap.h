// SPDX-License-Identifier: Apache-2.0
// The pages of one device, or of one graph pool, and the addresses at which its stream heaps see
// them: gives out runs of addresses whose bytes are nobody else's, in the order of docs/design.md
// ("Placement").
//
// Joins the three resources: addresses and memory (chunks of the home row, pages, stitched rows)
// and time (freed ranges, timelines). A run's bytes are the caller's for work on its stream: where
// they were another's, the stream has been made to wait, on the GPU.
//
// Threads: self-synchronised by one lock, taken after a stream heap's and before the timelines'. No
// call under it waits for the device's work. A request and what its heap gives back before it are
// served under the lock in one go, so these calls want it held.
//
// More than 25 methods: they keep one set of invariants under one lock. Each file decides one
// thing: page_heap_place.cc where a request goes, page_heap_waits.cc whose memory it may take and
// behind what, page_heap_stitch.cc which free bytes are joined, page_heap_rows.cc which stitched
// rows go, page_heap_driver.cc which driver calls are made, page_heap_pools.cc what other pools
// get, page_heap_plain.cc all that differs where memory is plain, page_heap_sleep.cc how pages lose
// and regain their memory.
//
// Plain memory (MemoryKind::plain): a page is a segment, and a region of its own. It has one
// address for as long as it lives, there are no stitched rows, and nothing is ever mapped or
// unmapped.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/queued_mutex.h"
#include "core/memory/address_map.h"
#include "core/memory/budget.h"
#include "core/memory/chunks.h"
#include "core/memory/home_pages.h"
#include "core/memory/remap_budget.h"
#include "core/memory/stitch_plan.h"
#include "core/memory/stitched_rows.h"
#include "core/placement/placement_cache.h"
#include "core/time/remote_work.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/device.h"
#include "weir/heap_types.h"
#include "weir/result.h"

namespace weir {

class PageHeap {
 public:
  // The stream heap that asks; the caller holds its lock.
  struct Owner {
    HeapId id;
    TimelineId timeline;
    HeapFold& fold;
    FenceSet waited{};  // what the request made the stream wait for
  };

  // A page that no heap has and nothing is mapped to; nobody uses its bytes any more.
  struct UnmappedPage {
    PhysicalHandle handle;
    Bytes size;
  };
  static constexpr Bytes kUnlimited{~std::uint64_t{0}};
  // Where pages may come from before the device is asked for new ones: gives about as much as was
  // asked for, or less, and never more than `most`. Called under this page heap's lock.
  using Source = std::function<std::vector<UnmappedPage>(Bytes wanted, Bytes most)>;

  // All must outlive this. `options.limit` is of these pages alone.
  PageHeap(Device& device, Timelines& timelines, RemoteWork& remote_work, Observer& observer,
           AddressMap& addresses, Budget& budget, const HeapOptions& options, Source source = {});
  // Waits for no work. Everything is unmapped and given back, in use or not.
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  QueuedMutex& mutex() const WEIR_RETURN_CAPABILITY(mutex_) { return mutex_; }

  // What a heap served without asking here, since it last asked.
  struct Served {
    std::uint64_t requests = 0;
    Bytes bytes;
    std::uint64_t runs = 0;  // requests for runs; in allocate(), this one included
  };
  // The run, if its bytes are free and the owner's to use. What has no memory any more, in the home
  // row, gets some. Errors: invalid_argument (they are not); out_of_memory; device.
  Status allocate_at(Owner& owner, Range run);
  // A run of `size` bytes, a multiple of kGrain. `keys` name the request: a program that repeats
  // itself asks with the same again.
  // Errors: out_of_memory, also where only new memory from the device would do and that may not
  // be had yet; device. `rather_not`: create pages only if existing pages cannot serve the request.
  // `never`: existing pages serve the request, or none do.
  enum class Create { may, not_yet, rather_not, never };
  Result<Address> allocate(Owner& owner, Bytes size, RequestKeys keys, Served served,
                           Create create = Create::may) WEIR_REQUIRES(mutex_);

  // Counts what a heap served that has nothing to ask.
  void count(Served served) WEIR_REQUIRES(mutex_);

  // The run goes back. Work on other streams that `fences` name may still use it.
  void free(Owner& owner, Range run, const FenceSet& fences) WEIR_REQUIRES(mutex_);

  // Gives idle pages back to the driver, the largest first, until `wanted` bytes went; passes over
  // those whose work may still run. Returns how much went.
  Result<Bytes> give_to_device(Bytes wanted);
  // The same; nothing, if another thread is at work here.
  Result<Bytes> try_give_to_device(Bytes wanted);
  // Gives up idle pages, the largest first, until `wanted` bytes are given or no more can be. Skips
  // pages that graphs may use, pages with pending work, and those with which it would be more than
  // `most`.
  std::vector<UnmappedPage> give_up(Bytes wanted, Bytes most = kUnlimited);
  // The same; nothing, if another thread is at work here. For who holds a lock that may not be held
  // while this one is waited for.
  std::vector<UnmappedPage> try_give_up(Bytes wanted);
  // For trim(): without any page, gives back what else is held for them, but for addresses.
  void tidy();
  // The same, and addresses too: of a heap to whose blocks nobody will come back.
  void give_back_addresses();
  // Takes pages in, as idle ones. Over a lowered limit they are the driver's.
  void take_in(const std::vector<UnmappedPage>& pages);
  // From now on whatever page is used is kept: never unmapped, nor given up. settle_kept() ends
  // that: those pages stay kept, or not (unless they were before). let_go(): none is any more.
  void keep_what_is_used(bool keep);
  void settle_kept(bool keep);
  // What may be using them still is `launches`.
  void let_go(const FenceSet& launches);
  // The same; false, if another thread is at work here.
  bool try_let_go(const FenceSet& launches);
  Bytes kept() const;

  // --- Sleep (page_heap_sleep.cc).

  // Asleep: no request is served (ErrorCode::asleep), and pages come and go by the calls of this
  // part alone; frees go on. To be awake again it needs the memory of all its pages.
  void set_asleep(bool asleep);
  bool is_asleep() const { return asleep_.load(std::memory_order_acquire); }  // takes no lock
  static Error asleep_error();
  // Gives idle pages back to the driver, asleep or not, as give_to_device() does.
  Result<Bytes> give_idle();
  struct SleepingPage {
    PageId page;
    Range home;
    std::vector<Range> in_use;  // home addresses, in order; close ones are one
  };
  // Those that have memory, whole or in part, by id. `kept_whole`: all bytes of pages that graphs
  // keep count as in use.
  std::vector<SleepingPage> pages_to_sleep(bool kept_whole) const;
  // The bytes of a block as home addresses, in order.
  std::vector<Range> home_of(Range block) const;
  // All pages that hold bytes of a block, or of the stitched row that it lies in.
  std::vector<PageId> pages_under(Range block) const;
  // The page loses its mappings and its memory, as far as it has any; all work on it is done.
  // On an error it may have lost some: either call goes on from there.
  Status take_memory(PageId page);
  // It gets what it lacks, with other bytes than it had. False: nobody needs the page any more, and
  // it is gone. Errors: out_of_memory; device.
  Result<bool> renew_memory(PageId page);
  // Has the page (all of them) its memory, and all mappings?
  bool has_memory(PageId page) const;
  bool has_all_memory() const;
  Bytes absent_bytes() const {
    const QueuedLock lock(mutex_);
    return absent_bytes_;
  }

  // Waits (the host does) for the work that idle pages are held by, but not where its stream is
  // captured just now. No lock is held meanwhile.
  Status wait_for_idle_pages();
  // Of every mapping.
  Status renew_access();
  // The pages under a block, in order.
  std::vector<PagePart> parts(Range block) const;
  // Could `run` be one: does it lie in the home row, or is it mapped in a stitched one?
  bool has_addresses(Range run) const;

  // Of these pages alone, of which none may be there.
  void set_limit(Bytes limit);
  // Do all page heaps of the device hold more than its limit allows? Then nothing should be kept
  // back. Takes no lock.
  bool over_limit() const { return budget_.excess() > 0_B; }
  // If so, idle pages go whose work is done. An error leaves them for the next time.
  void keep_to_limit();
  ReusePolicy reuse() const { return reuse_; }
  MemoryKind memory() const { return plain_ ? MemoryKind::plain : MemoryKind::pages; }
  // May a request make its stream wait at all? Takes no lock.
  bool makes_waits() const { return reuse_ != ReusePolicy::no_wait; }
  // Does the policy take memory whose last use may still be running, however recent? Takes no lock.
  bool reuses_at_once() const { return reuse_ == ReusePolicy::wait; }

  // Sizes at this moment.
  struct Totals {
    Bytes total, leased, used;
    Bytes limit;       // of these pages alone; zero: none
    Bytes peak_total;  // after any request, since set_limit()
    std::uint64_t mappings = 0;
    bool short_of_mappings = false;  // the last request failed for want of them
  };
  Totals totals() const;
  // Free bytes that one of these streams was fenced to use; no fence is asked about.
  struct FreeInUse {
    Bytes bytes;
    FenceSet uses;  // by those streams alone
  };
  std::vector<FreeInUse> free_in_use_by(const std::vector<TimelineId>& users) const;
  // Pages by id, for a snapshot.
  std::vector<PageInfo> pages() const;
  // Calls look(totals, pages) while nothing can change them.
  template <class Look>
  void hold_still(Look&& look) const {
    const QueuedLock lock(mutex_);
    look(totals_locked(), pages_locked());
  }

  // Broken invariants, named. `in_use`: the runs given out, as the stream heaps have them.
  std::vector<std::string> validate(const std::vector<Range>& in_use) const;

 private:
  friend struct TestAccess;

  // A page that is held, and not mapped: its memory comes first when the row grows.
  struct HeldPage {
    PageId id;
    UnmappedPage page;
  };

  // --- A run as bytes of the home row.

  // A run, and what lies at its begin: a chunk of the home row, or a stitched row; or neither.
  struct Place {
    Range run;
    Chunk* chunk = nullptr;
    StitchedRow* row = nullptr;
  };
  Place place_of(Range run) const WEIR_REQUIRES(mutex_);
  // Calls visit(chunk, range within it) for each part of the run, until it returns false. Returns
  // whether all were visited, and there were any.
  template <class Visitor>
  bool visit_parts(const Place& place, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    if (place.chunk != nullptr) return visit(*place.chunk, place.run);
    return place.row != nullptr &&
           place.row->visit_parts(place.run.size, [&](Range home) WEIR_NO_THREAD_ANALYSIS {
             return visit(*chunks_.at(home.begin), home);
           });
  }
  bool is_free(const Place& place) const WEIR_REQUIRES(mutex_);
  // The parts of a run that lie in the home row and have no memory, as ranges of whole pages that
  // could be mapped there.
  std::vector<Range> vacant_in(Range run) const WEIR_REQUIRES(mutex_);

  // --- Serving a request (page_heap.cc, page_heap_place.cc, page_heap_stitch.cc).

  // Places the request and claims the place.
  Status serve(Owner& owner, Bytes size, RequestKeys keys, Address& at, bool& recalled)
      WEIR_REQUIRES(mutex_);
  // The same; where a capture is in the way of a wait, with memory that needs none.
  Status serve_beside_captures(Owner& owner, Bytes size, RequestKeys keys, Create create,
                               Address& at, bool& recalled) WEIR_REQUIRES(mutex_);
  // The ways to serve a request, in order; each gives a place that is not yet claimed.
  std::optional<Address> recall(Owner& owner, Bytes size, RequestKeys keys) WEIR_REQUIRES(mutex_);
  Result<Address> place_with_source(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Result<Address> place(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);

  // What a stream that takes these bytes has to wait for, as the reuse policy sees it.
  enum class Wait {
    none,
    likely_over,       // for a use that is long past
    recent,            // for a recent one; or the request may not have them
    in_use_elsewhere,  // the bytes are its own, and other streams that were named still use them
  };
  // `home`: bytes of a free chunk.
  Wait wait_needed(const Owner& owner, const Chunk& chunk, Range home) WEIR_REQUIRES(mutex_);
  Wait wait_needed(const Owner& owner, const Place& place) WEIR_REQUIRES(mutex_);
  // A place in the home row without a recent use: of the first that fit, the lightest.
  std::optional<Address> find(const Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Bytes bytes_in_use_elsewhere(const Owner& owner, const Chunk& chunk) WEIR_REQUIRES(mutex_);
  // Of those that fit, the one whose last use is the longest past.
  std::optional<Address> find_oldest(const Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  // A stitched row whose bytes are free.
  std::optional<Address> find_row(const Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  // Bytes of idle pages that `size` bytes at the chunk's start, or at its end, would make busy.
  struct Ends {
    Bytes low, high;
  };
  Ends activated(const Chunk& chunk, Bytes size) const WEIR_REQUIRES(mutex_);

  // Where the home row would grow for a request: there are `have` free bytes before, that count.
  struct Frontier {
    Address begin;
    Bytes have;
    Bytes missing;
  };
  std::optional<Frontier> frontier(const Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  enum class Growth { no, yes, for_in_use_elsewhere };
  Growth growth(Bytes size, Bytes missing) const WEIR_REQUIRES(mutex_);
  bool may_hold(Bytes more, Bytes beside) const WEIR_REQUIRES(mutex_);
  // May this request have new pages now? May it prefer them to existing ones, now or later?
  bool may_create() const WEIR_REQUIRES(mutex_) {
    return create_ == Create::may || create_ == Create::rather_not;
  }
  bool may_prefer_new() const WEIR_REQUIRES(mutex_) {
    return create_ == Create::may || create_ == Create::not_yet;
  }
  Result<Address> grow(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  // Memory that nobody uses, and new pages for what that leaves, in the place of what is in use
  // elsewhere.
  std::optional<Address> place_beside_used(Owner& owner, Bytes size, Bytes most_created)
      WEIR_REQUIRES(mutex_);
  // Beyond so many times the request in use elsewhere, it waits for the oldest: the other stream
  // has one to work on and one to go on with, and one is to spare.
  static constexpr std::uint64_t kBuffersElsewhere = 3;
  bool enough_in_use_elsewhere(Bytes size) const WEIR_REQUIRES(mutex_) {
    return in_use_elsewhere_ >= size * kBuffersElsewhere;
  }

  Result<Address> stitch(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  // The largest free stretches of which `skip(chunk, range)` is not true.
  template <class Skip>
  std::vector<Range> stretches(Skip&& skip) const WEIR_NO_THREAD_ANALYSIS;
  StitchPlan plan(const Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Result<Address> build(Owner& owner, const StitchPlan& plan) WEIR_REQUIRES(mutex_);
  Status map_row(Owner& owner, StitchedRow& row, const std::vector<Page*>& pages)
      WEIR_REQUIRES(mutex_);

  // --- Plain memory (page_heap_plain.cc).

  Result<Address> place_in_segments(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  // A new segment for the request, or what is held.
  Result<Address> add_segment(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Page& adopt(const Owner& owner, HeldPage segment) WEIR_REQUIRES(mutex_);
  // The page is idle, and about to go.
  void forget_segment(const Page& page) WEIR_REQUIRES(mutex_);

  // Can a stitched row for a request be afforded?
  bool affords_row(Bytes size) const WEIR_REQUIRES(mutex_);
  // Sizes of new pages for at least `size` bytes in all.
  std::vector<Bytes> page_sizes(Bytes size) const WEIR_REQUIRES(mutex_);
  Bytes total() const WEIR_REQUIRES(mutex_) { return pages_.total() + held_bytes_ - absent_bytes_; }
  Bytes room() const WEIR_REQUIRES(mutex_);

  // --- Whom memory may serve, and behind what (page_heap_waits.cc).

  // Makes the run the owner's: waits for whom it must, and marks the bytes in use.
  Status claim(Owner& owner, const Place& place, bool waits = true) WEIR_REQUIRES(mutex_);
  Status wait_for(Owner& owner, const Place& place) WEIR_REQUIRES(mutex_);
  // Need the owner not wait for this? Within a request each stream is looked up once.
  bool is_past(const Owner& owner, Fence fence) WEIR_REQUIRES(mutex_);
  bool is_past(const Owner& owner, const FenceSet& fences) WEIR_REQUIRES(mutex_);
  bool is_past(const Owner& owner, const FreedRange& freed) WEIR_REQUIRES(mutex_);
  // What the owner has to wait for before it has these bytes of a free chunk.
  static void collect(const Owner& owner, const Chunk& chunk, Range home, FenceSet& fences);
  // All uses of these bytes.
  FenceSet users_of(Range home) const WEIR_REQUIRES(mutex_);
  // Where uses need not be told, what a graph may use serves no stream but the one that it was
  // captured on: whoever has it meanwhile can't know when the graph is launched.
  bool is_barred(const Owner& owner, const Chunk& chunk, Range home) const WEIR_REQUIRES(mutex_);
  // Is nobody to be waited for, as far as is known or can be seen now?
  bool is_settled(const Owner& owner, const Chunk& chunk, Range home) WEIR_REQUIRES(mutex_);
  // Would the owner wait for an event of the whole context, while work goes on that such an event
  // covers and that waits for other processes?
  bool waits_for_remote_work(const Owner& owner, const Chunk& chunk, Range home)
      WEIR_REQUIRES(mutex_);
  // Would the owner have to wait for these bytes?
  bool is_in_use(const Owner& owner, const Chunk& chunk, Range home) WEIR_REQUIRES(mutex_);
  // May this request not have them at all?
  bool is_refused(const Owner& owner, const Chunk& chunk, Range home) WEIR_REQUIRES(mutex_);
  bool is_in_foreign_capture(const Owner& owner) WEIR_REQUIRES(mutex_);
  static std::uint64_t freed_at(const Chunk& chunk, Range home);
  bool may_wait() const WEIR_REQUIRES(mutex_) { return !settled_only_; }
  bool avoids_anything() const { return reuse_ != ReusePolicy::wait; }

  // --- Driver calls, each with its bookkeeping (page_heap_driver.cc).

  // Addresses, told to whoever looks addresses up.
  Result<Range> reserve(Bytes least) WEIR_REQUIRES(mutex_);
  // More of them for the home row.
  Status begin_region(Bytes least) WEIR_REQUIRES(mutex_);
  // Where the home row has room for so much.
  Result<Address> vacancy(Bytes room) WEIR_REQUIRES(mutex_);
  Result<HeldPage> create(Bytes size) WEIR_REQUIRES(mutex_);
  HeldPage add(UnmappedPage loose) WEIR_REQUIRES(mutex_);
  // Pages of at least `size` together, held: those that there are already, and new ones.
  Result<std::vector<HeldPage>> obtain(Bytes size) WEIR_REQUIRES(mutex_);
  // Pages of at least `size` together, mapped side by side from `at` on, which is vacant: free.
  Result<std::vector<Page*>> extend(Owner& owner, Address at, Bytes size) WEIR_REQUIRES(mutex_);
  // New pages exactly there, which is vacant: free.
  Status fill(Owner& owner, Range vacant) WEIR_REQUIRES(mutex_);
  // All that is held is mapped.
  Status map_held(Owner& owner) WEIR_REQUIRES(mutex_);
  Result<std::vector<Page*>> map_home(const Owner& owner, Address at,
                                      const std::vector<HeldPage>& pages) WEIR_REQUIRES(mutex_);
  Status map_page(const Owner& owner, PageId page, PhysicalHandle handle, Range at)
      WEIR_REQUIRES(mutex_);
  // `heap`: that it was mapped for.
  Status unmap_page(PageId page, Range at, HeapId heap) WEIR_REQUIRES(mutex_);
  void hold(HeldPage page) WEIR_REQUIRES(mutex_);
  void unmap_strays() WEIR_REQUIRES(mutex_);
  std::vector<UnmappedPage> give_up_locked(Bytes wanted, Bytes most) WEIR_REQUIRES(mutex_);
  // Takes out pages that nobody uses, one by one, until `wanted` bytes are gone or nothing more can
  // go: first held ones that are mapped nowhere, then idle ones whose work is done, the largest
  // first. go(page) says whether the page is gone. A page that can't be taken is passed over, and
  // so is one with which more than `most` would go. Returns the first error of unmapping one;
  // `unasked`: the first of asking about its work.
  Status take_idle(Bytes wanted, Bytes most, Status& unasked,
                   const std::function<bool(UnmappedPage)>& go) WEIR_REQUIRES(mutex_);
  void let_go_locked(const FenceSet& launches) WEIR_REQUIRES(mutex_);
  void take_in_locked(const std::vector<UnmappedPage>& pages) WEIR_REQUIRES(mutex_);
  // The page is idle. An error leaves it here, without some of its mappings.
  Result<UnmappedPage> take_out(Page& page) WEIR_REQUIRES(mutex_);
  UnmappedPage take_out(HeldPage page) WEIR_REQUIRES(mutex_);
  // The driver takes its memory back.
  Status release(const UnmappedPage& page);
  // To the driver. On an error the page is held again.
  Status give_back(UnmappedPage page) WEIR_REQUIRES(mutex_);
  void shrink_peak() WEIR_REQUIRES(mutex_);
  bool is_empty() const WEIR_REQUIRES(mutex_) { return pages_.all().empty() && held_.empty(); }
  // Pages went. If none is left, so do the places that requests were given, and events: a program
  // that comes to other requests later would hold both for ever.
  void forget_if_empty() WEIR_REQUIRES(mutex_);
  // Idle pages that may go, the largest first.
  std::vector<Page*> idle_pages() WEIR_REQUIRES(mutex_);
  // Is all work on an idle page done? `pending`: what was found not to be, of the pages before.
  Result<bool> is_over(const Page& page, FenceSet& pending) WEIR_REQUIRES(mutex_);
  Status unmap_last(StitchedRow& row) WEIR_REQUIRES(mutex_);
  Status unmap_row(StitchedRow& row) WEIR_REQUIRES(mutex_);
  Result<Bytes> trim_locked(Bytes keep) WEIR_REQUIRES(mutex_);
  void keep_to_limit_locked() WEIR_REQUIRES(mutex_);
  std::size_t mappings() const WEIR_REQUIRES(mutex_) {
    return pages_.all().size() + rows_.mappings() - absent_mappings_;
  }
  bool has_room_for_mappings(std::size_t more) const WEIR_REQUIRES(mutex_) {
    return mappings() + more <= most_mappings_;
  }
  Status make_room_for_mappings(std::size_t more) WEIR_REQUIRES(mutex_);

  // --- Pages without memory (page_heap_sleep.cc).

  struct PageMapping {
    Range range;
    HeapId heap;  // that it was mapped for
  };
  static PageMapping mapping(const Page& page, std::size_t mapping);
  static bool is_mapped(const Page& page, std::size_t mapping);
  // The number of the page's mapping in that row.
  static std::size_t mapping_in(const Page& page, const StitchedRow& row);
  void list_in_use(const Page& page, std::vector<Range>& in_use) const WEIR_REQUIRES(mutex_);
  Status map_again(const Page& page, Range at, HeapId heap) WEIR_REQUIRES(mutex_);
  bool may_forget(const Page& page) const WEIR_REQUIRES(mutex_);
  Status forget(Page& page) WEIR_REQUIRES(mutex_);
  void validate_asleep(std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);

  // --- Stitched rows that a program has no more use for (page_heap_rows.cc).

  // Keeps the number of their mappings in proportion to that of pages: rows that were not used for
  // long are given out no more, and unmapped when their work is done. A few driver calls at most.
  // Says by retire_next_ when it is to be called again.
  void retire_rows() WEIR_REQUIRES(mutex_);
  void retire_long_unused(std::size_t most) WEIR_REQUIRES(mutex_);
  void unmap_retired() WEIR_REQUIRES(mutex_);

  Totals totals_locked() const WEIR_REQUIRES(mutex_);
  std::vector<PageInfo> pages_locked() const WEIR_REQUIRES(mutex_);
  void validate_held(std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);
  void validate_regions(std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);
  void validate_addresses(std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);
  void validate_users(std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);
  void validate_runs(const std::vector<Range>& in_use, std::vector<std::string>& broken) const
      WEIR_REQUIRES(mutex_);

  Device& device_;
  Timelines& timelines_;
  RemoteWork& remote_work_;
  Observer& observer_;
  AddressMap& addresses_;
  Budget& budget_;
  const Source source_;
  const Bytes granularity_;
  const ReusePolicy reuse_;
  const std::uint64_t most_mappings_;
  const bool trusts_context_;  // Trust::context
  const bool plain_;           // MemoryKind::plain

  std::atomic<bool> asleep_{false};  // changed under mutex_

  mutable QueuedMutex mutex_;
  // Of pages that sleep: without memory; and mappings that are gone.
  Bytes absent_bytes_ WEIR_GUARDED_BY(mutex_);
  std::size_t absent_mappings_ WEIR_GUARDED_BY(mutex_) = 0;
  HomePages pages_ WEIR_GUARDED_BY(mutex_);
  Chunks chunks_ WEIR_GUARDED_BY(mutex_);
  StitchedRows rows_ WEIR_GUARDED_BY(mutex_){granularity_};
  std::vector<Range> regions_ WEIR_GUARDED_BY(mutex_);  // reserved
  Address row_begin_ WEIR_GUARDED_BY(mutex_);           // where the home row's first region does
  std::vector<HeldPage> held_ WEIR_GUARDED_BY(mutex_);
  Bytes held_bytes_ WEIR_GUARDED_BY(mutex_);
  // Mappings without access, which the driver would not take back yet: nobody uses them.
  std::vector<Range> strays_ WEIR_GUARDED_BY(mutex_);
  // While one timeline alone has used the pages, and no fence was left on them, nobody need be
  // waited for; never so again once it is not.
  std::optional<TimelineId> first_ WEIR_GUARDED_BY(mutex_);
  bool single_timeline_ WEIR_GUARDED_BY(mutex_) = true;
  std::vector<StitchedRow*> retired_ WEIR_GUARDED_BY(mutex_);
  FenceSet retired_users_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t retire_next_ WEIR_GUARDED_BY(mutex_) = 0;  // requests_ when that is looked at again
  PlacementCache placements_ WEIR_GUARDED_BY(mutex_);
  RemapBudget remap_budget_ WEIR_GUARDED_BY(mutex_);
  Bytes limit_ WEIR_GUARDED_BY(mutex_);
  Bytes peak_total_ WEIR_GUARDED_BY(mutex_);
  // The most in use, as far as that memory was not given back since.
  Bytes peak_used_ WEIR_GUARDED_BY(mutex_);
  bool keeps_used_ WEIR_GUARDED_BY(mutex_) = false;
  bool keeps_any_ WEIR_GUARDED_BY(mutex_) = false;  // is any page kept?
  std::uint64_t requests_ WEIR_GUARDED_BY(mutex_) = 0;

  // --- Of the request that is being served.
  // Up to where its stream is known to run after others: the first `past_count_`.
  std::array<Fence, 8> past_ WEIR_GUARDED_BY(mutex_);
  std::size_t past_count_ WEIR_GUARDED_BY(mutex_) = 0;
  Create create_ WEIR_GUARDED_BY(mutex_) = Create::may;
  // What the device has left, once creating a page failed.
  std::optional<Bytes> device_room_ WEIR_GUARDED_BY(mutex_);
  bool short_of_mappings_ WEIR_GUARDED_BY(mutex_) = false;
  // A free place was passed over, as its use is recent; bytes that are in use elsewhere.
  bool passed_over_ WEIR_GUARDED_BY(mutex_) = false;
  Bytes in_use_elsewhere_ WEIR_GUARDED_BY(mutex_);
  // The request takes only memory for which its stream need not be made to wait.
  bool settled_only_ WEIR_GUARDED_BY(mutex_) = false;
  // Each chunk is asked whether it may be taken at all: settled_only_, or Trust::context.
  bool checks_each_chunk_ WEIR_GUARDED_BY(mutex_) = false;
  // Of memory that other streams used, the request takes only what the host knows to be done: that
  // the stream has waited for the use is not enough.
  bool over_only_ WEIR_GUARDED_BY(mutex_) = false;
  // The same of all memory, the stream's own too: the stream is in a capture that nobody announced,
  // and what it waited for before is not ordered before the graph.
  bool idle_only_ WEIR_GUARDED_BY(mutex_) = false;
  // Memory that it would have to wait for together with other processes' work: whether such work
  // goes on is asked when the request meets such memory.
  enum class Remote { takes, not_asked, avoids };
  Remote remote_ WEIR_GUARDED_BY(mutex_) = Remote::takes;
};

}  // namespace weir
