// SPDX-License-Identifier: Apache-2.0
// Physical pages before they are mapped and after: they come from the driver or from other pools,
// are held, and go there again when nobody uses them; but for kept pages, which graphs may use.
// From the moment that a page comes it counts in the budget.
//
// Guarded by the page heap's lock.
#pragma once

#include <vector>

#include "core/memory/mappings.h"
#include "core/memory/page_heap_state.h"
#include "core/memory/request.h"
#include "weir/result.h"

namespace weir {

class PageSupply {
 public:
  static constexpr Bytes kUnlimited{~std::uint64_t{0}};

  PageSupply(PageHeapState& heap, Mappings& mappings) : heap_(heap), mappings_(mappings) {}
  // Releases the held pages.
  ~PageSupply();
  PageSupply(const PageSupply&) = delete;
  PageSupply& operator=(const PageSupply&) = delete;

  // --- Pages that come.

  // Pages of at least `size` bytes together: held ones, then new ones. On an error those that were
  // held are so again.
  Result<std::vector<HeldPage>> obtain(Request& request, Bytes size);
  // New pages of at least `size` bytes together, as large as suit a request of `request_size`. On
  // an error those that were created go back: a program that runs out of memory is told what is
  // free.
  Result<std::vector<HeldPage>> create(Request& request, Bytes size, Bytes request_size);
  // A new segment of plain memory, of a good size for the request, or the least.
  Result<HeldPage> create_segment(Request& request);

  void hold(HeldPage page);
  // Counts, and emits, that a page has its memory now (EventKind::create), or lost it (release).
  // `lent_by`: the graph pool that lends it; 0: none does.
  void note(EventKind kind, PageId page, Bytes size, std::uint64_t lent_by = 0);

  // --- Pages that nobody uses, on their way to the driver and to other pools.

  // Gives idle pages back to the driver, the largest first, until `wanted` bytes went; skips pages
  // whose work may still run. Returns how much went. Nothing goes while the heap sleeps.
  Result<Bytes> give_to_driver(Bytes wanted) {
    return heap_.tables.asleep ? 0_B : give_to_driver_though_asleep(wanted);
  }
  // give_to_driver(), asleep or not.
  Result<Bytes> give_to_driver_though_asleep(Bytes wanted);
  // give_to_driver_though_asleep() before new memory comes: what is remembered of requests stays.
  Result<Bytes> give_to_driver_for_new(Bytes wanted);
  // If the page heaps of the device hold more than its limit, gives back what is more. After an
  // error that stays until the next call.
  void keep_to_limit() {
    if (const Bytes excess = heap_.budget.excess(); excess > 0_B) (void)give_to_driver(excess);
  }
  // Gives idle pages to the caller, the largest first, until `wanted` bytes are given or no more
  // can be. Skips pages with pending work, and pages with which it would be more than `most`.
  std::vector<UnmappedPage> give_to_pool(Bytes wanted, Bytes most = kUnlimited);
  // Are there any that give_to_pool() may give, now or later?
  bool any() const { return !heap_.tables.held.empty() || !may_go().empty(); }
  // Adds pages of other pools, as idle ones. take_from_pool() then keeps to the limit;
  // hold_from_pool(), for a request that is going to use them, does not.
  void take_from_pool(const std::vector<UnmappedPage>& pages);
  void hold_from_pool(const std::vector<UnmappedPage>& pages);
  // The work that still uses idle pages.
  FenceSet users() const;

  // Removes a page that is idle and sleeps.
  Status forget(Page& page);
  // If the heap has no pages, drops the places that requests were given, spare records and old
  // events: a program that makes other requests later would hold them for ever. `complete`: those
  // events too that the device, when asked, says are complete.
  void forget_if_empty(bool complete = false);
  // forget_if_empty(), and unreserves the addresses. Call only if no pointer into the heap can be
  // used again.
  void give_back_addresses();

  // --- Pages that may not go, since graphs may use them.

  // From now on pages that are used are kept: never unmapped, nor given up. settle_kept() ends
  // that: those pages stay kept, or are kept no more (but for pages kept before).
  // `over`: PageTables::over_at_capture.
  void keep_what_is_used(std::optional<Sequence> over = std::nullopt);
  void settle_kept(bool keep);
  // No page is kept any more; `launches` may still use those that were.
  void let_go(const FenceSet& launches);

 private:
  friend class PageLoans;
  HeldPage add(UnmappedPage page);
  // A page comes from elsewhere, and is held.
  void receive(UnmappedPage page) { hold(add(page)); }
  // A page that is neither held nor mapped goes: it is the caller's.
  UnmappedPage part_with(HeldPage page);
  // Takes one that is held, by its place in PageTables::held.
  HeldPage take_held(std::size_t place);
  // To the driver.
  Status release(const UnmappedPage& page);
  Result<PhysicalHandle> create_page(Request& request, Bytes size);

  // What take() took, and its first errors: of unmapping a page, of asking about its work.
  struct Taken {
    Bytes bytes;
    Status unmapped, asked;
  };
  // Takes out pages one by one: held ones first. go(page) says whether the page is gone.
  template <class Go>
  Taken take(Bytes wanted, Bytes most, Go&& go);
  Result<UnmappedPage> unmap_and_part_with(Page& page);
  // Those that may go, the largest first.
  std::vector<Page*> may_go() const;
  Result<bool> is_over(const Page& page, FenceSet& pending);

  PageHeapState& heap_;
  Mappings& mappings_;
};

}  // namespace weir
