// The pages of one device and the addresses that its stream heaps see them at: gives out runs of
// addresses whose bytes are nobody else's, in the order of docs/design.md ("Placement").
//
// Joins the three resources: arenas (addresses), the page table (memory), timelines (time). A run's
// bytes are the caller's for work on its stream: where they were another's, the stream has been
// made to wait, on the GPU.
//
// Threads: self-synchronised by one lock, taken after a stream heap's and before the timelines'. No
// call under it waits for the device's work.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/address_map.h"
#include "core/arena.h"
#include "core/budget.h"
#include "core/fenced_ranges.h"
#include "core/mutex.h"
#include "core/observer.h"
#include "core/page_table.h"
#include "core/placement.h"
#include "core/placement_memory.h"
#include "core/timelines.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/result.h"

namespace weir {

class PageHeap : private PageTable::Listener {
 public:
  // The stream heap that asks; the caller holds its lock.
  struct Owner {
    HeapId id;
    TimelineId timeline;
    HeapFold& fold;
    FenceSet waited{};  // what the request made the stream wait for
  };

  // A page that no heap has and nothing is mapped to; nobody uses its bytes any more.
  struct LoosePage {
    PhysicalHandle handle;
    Bytes size;
  };
  // Where pages may come from before the device is asked for new ones: gives about as much as was
  // asked for, or less. Called under this page heap's lock.
  using Source = std::function<std::vector<LoosePage>(Bytes wanted)>;

  // All must outlive this. `options.limit` is of these pages alone.
  PageHeap(Device& device, Timelines& timelines, Observer& observer, AddressMap& addresses,
           Budget& budget, const HeapOptions& options, Source source = {});
  // Waits for no work. Everything is unmapped and given back, in use or not.
  ~PageHeap() override;
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  // What a heap served without asking here, since it last asked.
  struct Served {
    std::uint64_t requests = 0;
    Bytes bytes;
    std::uint64_t runs = 0;  // requests for runs; in allocate(), this one included
  };
  // The run, if its bytes are free and the owner's to use.
  // Errors: invalid_argument (they are not); device.
  Status allocate_at(Owner& owner, Range run);
  // A run of `size` bytes, a multiple of kGrain. `keys` name the request: a program that repeats
  // itself asks with the same again.
  // Errors: out_of_memory, also where only new memory from the device would do and that may not
  // be had yet; device. rather_not: only where pages at hand don't suffice.
  enum class Create { may, not_yet, rather_not };
  Result<Address> allocate(Owner& owner, Bytes size, RequestKeys keys, Served served,
                           Create create = Create::may);

  // Counts what a heap served that has nothing to ask.
  void count(Served served);

  // The run goes back. Work on other streams that `fences` name may still use it.
  void free(Owner& owner, Range run, const FenceSet& fences);

  // Gives idle pages back to the driver, the largest first, while more than `keep` bytes are held;
  // passes over those whose work may still run. Returns how much went.
  Result<Bytes> trim(Bytes keep);
  // Gives up idle pages, the largest first, until `wanted` bytes are given or no more can be. Those
  // that it has to keep it keeps, and those whose work may still run.
  std::vector<LoosePage> give_up(Bytes wanted);
  // The same; nothing, if another thread is at work here. For who holds a lock that may not be held
  // while this one is waited for.
  std::vector<LoosePage> try_give_up(Bytes wanted);
  // Takes pages in, as idle ones. Over a lowered limit they are the driver's.
  void take_in(const std::vector<LoosePage>& pages);
  // From now on whatever page is used is kept: never unmapped, nor given up. settle_kept() ends
  // that: those pages stay kept, or not (unless they were before). let_go(): none is any more.
  void keep_what_is_used(bool keep);
  void settle_kept(bool keep);
  // What may be using them still is `launches`.
  void let_go(const FenceSet& launches);
  // The same; false, if another thread is at work here.
  bool try_let_go(const FenceSet& launches);
  Bytes kept() const;

  // Waits (the host does) for the work that idle pages are held by, but not where its stream is
  // captured just now. No lock is held meanwhile.
  Status wait_for_idle_pages();
  // Of every mapping.
  Status renew_access();
  // The pages under `run`, in order.
  std::vector<PagePart> parts(Range run) const;

  // Of these pages alone, of which none may be there.
  void set_limit(Bytes limit);
  // Do all page heaps of the device hold more than its limit allows? Then nothing should be kept
  // back. Takes no lock.
  bool over_limit() const { return budget_.excess() > 0_B; }
  // If so, idle pages go whose work is done. An error leaves them for the next time.
  void keep_to_limit();
  ReusePolicy reuse() const { return reuse_; }
  // May a request make its stream wait at all? Takes no lock.
  bool makes_waits() const { return reuse_ != ReusePolicy::no_wait; }
  // Does the policy take memory whose last use may still be running, however recent? Takes no lock.
  bool reuses_at_once() const { return reuse_ == ReusePolicy::wait; }

  // Sizes at this moment.
  struct Totals {
    Bytes total, leased, used;
    std::uint64_t mappings = 0;
    bool short_of_mappings = false;  // the last request failed for want of them
  };
  Totals totals() const;
  // Pages by id, for a snapshot.
  std::vector<PageInfo> pages() const;
  // Calls look(totals, pages) while nothing can change them.
  template <class Look>
  void hold_still(Look&& look) const {
    const MutexLock lock(mutex_);
    look(totals_locked(), pages_locked());
  }

  // Broken invariants, named. `in_use`: the runs given out, as the stream heaps have them.
  std::vector<std::string> validate(const std::vector<Range>& in_use) const;

 private:
  friend struct TestAccess;

  // Who may still be using a page's bytes.
  struct PageUse {
    std::optional<PageId> page;  // whose this is; none: nobody's now
    FencedRanges fenced;         // other streams than the holder's, by offset
    // While idle: whose work used it last, and what anybody else waits for
    // (Timelines::release_point).
    struct Donor {
      TimelineId holder;
      Sequence released;
    };
    std::optional<Donor> donor;
    std::uint64_t freed_at : 62 = 0;  // requests_ when bytes were last freed
    // Its addresses may be used by work that nobody will announce; or would be, by what is being
    // captured.
    enum class Kept : std::uint64_t { no, for_now, yes };
    Kept kept : 2 = Kept::no;
  };
  struct Region {
    HeapId heap;
    Range range;
  };
  // Aliases to unmap once nobody uses their addresses any more. (Those whose page went went with
  // it.)
  struct Retired {
    std::vector<Address> at;
    FenceSet users;
  };

  Arena& arena(HeapId heap) WEIR_REQUIRES(mutex_) { return arenas_[heap.value]; }
  const Arena& arena(HeapId heap) const WEIR_REQUIRES(mutex_) { return arenas_[heap.value]; }
  PageUse& use_of(const Page& page) WEIR_REQUIRES(mutex_) { return uses_[page.slot]; }
  const PageUse& use_of(const Page& page) const WEIR_REQUIRES(mutex_) { return uses_[page.slot]; }

  void usable(HeapId heap, Range addresses) override WEIR_REQUIRES(mutex_);
  void unusable(HeapId heap, Range addresses) override WEIR_REQUIRES(mutex_);

  // Places the request and claims the place.
  Status serve(Owner& owner, Bytes size, RequestKeys keys, Address& at, bool& recalled)
      WEIR_REQUIRES(mutex_);
  // The ways to serve a request, in order; each gives a place that is not yet claimed.
  std::optional<Address> recall(Owner& owner, Bytes size, RequestKeys keys) WEIR_REQUIRES(mutex_);
  Result<Address> place_with_source(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Result<Address> place(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Bytes free_at_frontier(Owner& owner) WEIR_REQUIRES(mutex_);
  Result<Address> grow(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Result<Address> stitch(Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Result<Address> build(Owner& owner, const Plan& plan) WEIR_REQUIRES(mutex_);
  bool extends_row(Owner& owner, const Plan& plan, Bytes more) const WEIR_REQUIRES(mutex_);

  Placement placement(const Owner& owner) const WEIR_REQUIRES(mutex_);
  // With so many times a request lent already it waits for the oldest: the other stream has one to
  // work on and one to go on with, and one is to spare.
  static constexpr std::uint64_t kLentBuffers = 3;
  // Should the reuse policy rather not use these bytes yet? Lent: other streams use them that they
  // were lent to, and not just streams that had them before.
  enum class Avoid { no, yes, lent };
  Avoid avoid(const Owner& owner, Range range) WEIR_REQUIRES(mutex_);
  // Where uses need not be told, what a graph may use serves no stream but the one that it was
  // captured on: whoever has it meanwhile can't know when the graph is launched.
  bool is_barred(const Owner& owner, const Page& page) const WEIR_REQUIRES(mutex_);
  bool is_barred(const Owner& owner, Range range) const WEIR_REQUIRES(mutex_);
  // Is nobody to be waited for, as far as is known or can be seen now?
  bool is_settled(const Owner& owner, Range range) WEIR_REQUIRES(mutex_);
  bool is_over(const Page& page) WEIR_REQUIRES(mutex_);
  bool is_in_foreign_capture(const Owner& owner) WEIR_REQUIRES(mutex_);
  bool is_settled(const Owner& owner, PageId page, Bytes offset, Bytes size) WEIR_REQUIRES(mutex_);
  bool may_wait() const WEIR_REQUIRES(mutex_) { return !settled_only_; }
  // Is there more to ask of free memory than whom its taker waits for?
  bool is_careful() const WEIR_REQUIRES(mutex_) { return careful_; }
  // What a plan for the owner leaves out.
  Placement::Skip skip_for(const Owner& owner) WEIR_REQUIRES(mutex_);
  std::optional<Placement::Found> find_oldest(const Owner& owner, const Placement& placement,
                                              Bytes size) WEIR_REQUIRES(mutex_);
  std::uint64_t freed_at(Range range) const WEIR_REQUIRES(mutex_);
  bool is_lent(const Owner& owner, Range range) const WEIR_REQUIRES(mutex_);
  std::optional<Address> place_beside_lent(Owner& owner, Bytes size, Bytes most_created)
      WEIR_REQUIRES(mutex_);
  bool is_used(const Owner& owner, PageId page, Bytes offset, Bytes size) const
      WEIR_REQUIRES(mutex_);
  void note_lent(Range range) WEIR_REQUIRES(mutex_);
  bool enough_is_lent(Bytes size) const WEIR_REQUIRES(mutex_) {
    return lent_ >= size * kLentBuffers;
  }
  // May new pages be had rather than a place that is avoided, or stitched? `passed_over`: a free
  // place was avoided that is not lent memory.
  enum class Growth { no, yes, for_lent };
  Growth growth(const Placement& placement, Bytes size, Bytes missing, bool passed_over) const
      WEIR_REQUIRES(mutex_);
  void note_grown_for_lent(Bytes bytes) WEIR_REQUIRES(mutex_);
  void judge_effort() WEIR_REQUIRES(mutex_);
  bool avoids_anything() const { return reuse_ != ReusePolicy::wait; }
  Bytes room() const WEIR_REQUIRES(mutex_);

  // Makes the run the owner's: waits for whom it must, and marks the bytes in use.
  Status claim(Owner& owner, Range run, bool waits = true) WEIR_REQUIRES(mutex_);
  Status wait_for(Owner& owner, Range run) WEIR_REQUIRES(mutex_);
  FenceSet fences_on(const Owner& owner, Range run) const WEIR_REQUIRES(mutex_);
  // On a part of a page.
  void collect_fences(const Owner& owner, const Page& page, Bytes offset, Bytes size,
                      FenceSet& fences) const WEIR_REQUIRES(mutex_);
  bool is_owners(const Owner& owner, const Page& page) const WEIR_REQUIRES(mutex_);
  bool is_quiet(const Owner& owner, Range run) const WEIR_REQUIRES(mutex_);

  // Driver calls, each with its bookkeeping.
  Status begin_row(const Owner& owner, Bytes size) WEIR_REQUIRES(mutex_);
  Result<PageId> create(Bytes size) WEIR_REQUIRES(mutex_);
  Status append(Owner& owner, PageId page) WEIR_REQUIRES(mutex_);
  void unmap_strays() WEIR_REQUIRES(mutex_);
  Status create_and_append(Owner& owner, const std::vector<Bytes>& sizes) WEIR_REQUIRES(mutex_);
  PageId add(LoosePage loose) WEIR_REQUIRES(mutex_);
  std::vector<LoosePage> give_up_locked(Bytes wanted) WEIR_REQUIRES(mutex_);
  void let_go_locked(const FenceSet& launches) WEIR_REQUIRES(mutex_);
  void take_in_locked(const std::vector<LoosePage>& pages) WEIR_REQUIRES(mutex_);
  Result<LoosePage> take_out(PageId page) WEIR_REQUIRES(mutex_);
  // Idle pages that may go, the largest first.
  std::vector<PageId> idle_pages() const WEIR_REQUIRES(mutex_);
  Status unmap(Address at) WEIR_REQUIRES(mutex_);
  Status release(PageId page) WEIR_REQUIRES(mutex_);
  Result<Bytes> trim_locked(Bytes keep) WEIR_REQUIRES(mutex_);
  void keep_to_limit_locked() WEIR_REQUIRES(mutex_);
  bool has_room_for_mappings(std::size_t more) const WEIR_REQUIRES(mutex_);
  Status make_room_for_mappings(std::size_t more) WEIR_REQUIRES(mutex_);
  // Keeps the number of aliases in proportion to that of pages: those that were not used for long
  // are given out no more, and unmapped when their work is done. A few driver calls at most. Says
  // by shed_next_ when it is to be called again.
  void shed_aliases(const Owner& owner) WEIR_REQUIRES(mutex_);
  std::vector<PageMapping> long_unused(HeapId heap) const WEIR_REQUIRES(mutex_);
  void retire_aliases(const Owner& owner, std::size_t most) WEIR_REQUIRES(mutex_);
  void unmap_retired() WEIR_REQUIRES(mutex_);
  // Fences that hold an idle page.
  FenceSet held_by(PageId page) const WEIR_REQUIRES(mutex_);

  Totals totals_locked() const WEIR_REQUIRES(mutex_);
  std::vector<PageInfo> pages_locked() const WEIR_REQUIRES(mutex_);
  void validate_arenas(std::vector<std::string>& broken) const WEIR_REQUIRES(mutex_);
  void validate_runs(const std::vector<Range>& in_use, std::vector<std::string>& broken) const
      WEIR_REQUIRES(mutex_);

  Device& device_;
  Timelines& timelines_;
  Observer& observer_;
  AddressMap& addresses_;
  Budget& budget_;
  const Source source_;
  const Bytes granularity_;
  const ReusePolicy reuse_;
  const std::uint64_t most_mappings_;
  const bool is_untold_;  // Trust::context

  mutable Mutex mutex_;
  PageTable table_ WEIR_GUARDED_BY(mutex_);
  std::vector<Arena> arenas_ WEIR_GUARDED_BY(mutex_);               // by HeapId
  std::vector<std::optional<RowId>> rows_ WEIR_GUARDED_BY(mutex_);  // at each arena's frontier
  std::vector<PageUse> uses_ WEIR_GUARDED_BY(mutex_);               // by Page::slot
  // While one timeline alone has used the pages, and no fence was left on them, nobody need be
  // waited for; never so again once it is not.
  std::optional<TimelineId> first_ WEIR_GUARDED_BY(mutex_);
  bool alone_ WEIR_GUARDED_BY(mutex_) = true;
  std::vector<Region> regions_ WEIR_GUARDED_BY(mutex_);
  // Mappings without access, which the driver would not take back yet: nobody uses them.
  std::vector<Region> strays_ WEIR_GUARDED_BY(mutex_);
  Retired retired_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t shed_next_ WEIR_GUARDED_BY(mutex_) = 0;  // requests_ when that is looked at again
  PlacementMemory memory_ WEIR_GUARDED_BY(mutex_);
  Effort effort_ WEIR_GUARDED_BY(mutex_);
  Bytes limit_ WEIR_GUARDED_BY(mutex_);
  // The most in use, as far as that memory was not given back since.
  Bytes peak_used_ WEIR_GUARDED_BY(mutex_);
  Bytes grown_for_lent_ WEIR_GUARDED_BY(mutex_);  // of what is held beyond that
  // What the device has left, once creating a page failed in this request.
  std::optional<Bytes> device_room_ WEIR_GUARDED_BY(mutex_);
  bool short_of_mappings_ WEIR_GUARDED_BY(mutex_) = false;
  // Pages of places that were avoided since other streams still use what they were lent; and how
  // many bytes those places have.
  std::vector<PageId> lent_pages_ WEIR_GUARDED_BY(mutex_);
  Bytes lent_ WEIR_GUARDED_BY(mutex_);
  Create create_ WEIR_GUARDED_BY(mutex_) = Create::may;  // in this request
  // This request takes only memory that nobody need be waited for.
  bool settled_only_ WEIR_GUARDED_BY(mutex_) = false;
  bool careful_ WEIR_GUARDED_BY(mutex_) = false;  // that, or Trust::context
  // ... and whose work the host knows to be over: what the stream has waited for does not count.
  bool over_only_ WEIR_GUARDED_BY(mutex_) = false;
  // ... its own included: the stream is in a capture that nobody announced, and what it has waited
  // for before it took memory of others is not ordered before the graph.
  bool idle_only_ WEIR_GUARDED_BY(mutex_) = false;
  bool keeps_used_ WEIR_GUARDED_BY(mutex_) = false;
  std::uint64_t requests_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint32_t next_row_ WEIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir
