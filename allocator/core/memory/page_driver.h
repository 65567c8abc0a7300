// SPDX-License-Identifier: Apache-2.0
// The driver calls of a page heap, each with its bookkeeping: what fails leaves both as they were.
// Nobody else in the core maps memory.
//
// Plain memory (MemoryKind::plain): a page is a segment, and a region of its own. It has one
// address for as long as it lives, and nothing is ever mapped or unmapped.
//
// Guarded by the page heap's lock.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "core/memory/budget.h"
#include "core/memory/page_tables.h"
#include "core/memory/placer.h"
#include "core/memory/request.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/device.h"
#include "weir/result.h"

namespace weir {

class PageDriver {
 public:
  static constexpr Bytes kUnlimited{~std::uint64_t{0}};

  PageDriver(MemoryCalls& device, Timelines& timelines, Observer& observer, TileIndex& index,
             Budget& budget, PageTables& tables, const PageRules& rules, Placer& placer)
      : device_(device),
        timelines_(timelines),
        observer_(observer),
        index_(index),
        budget_(budget),
        tables_(tables),
        rules_(rules),
        placer_(placer) {}
  // Everything is unmapped and given back, in use or not.
  ~PageDriver();
  PageDriver(const PageDriver&) = delete;
  PageDriver& operator=(const PageDriver&) = delete;

  // --- Memory for a request.

  // Vacant addresses of the home row for `bytes`, in a new region if need be.
  Result<Address> room_for(Bytes bytes);
  // Maps pages of at least `size` bytes together from `at` on, where the row is vacant: held ones
  // first, then new ones. Their bytes are free.
  Result<std::vector<Page*>> extend(Request& request, Address at, Bytes size);
  // Maps new pages at exactly these vacant addresses.
  Status fill(Request& request, Range vacant);
  // Maps all pages that are held.
  Status map_held(Request& request);
  // Maps the plan's pieces side by side, and creates what it lacks. The row is idle.
  Result<StitchedRow*> build(Request& request, const StitchPlan& plan);
  // A new segment of plain memory, free: of a good size for the request, or the least.
  Result<Range> add_segment(Request& request);

  // --- Memory that goes, or comes from other pools.

  void hold(UnmappedPage page) { hold(add(page)); }
  // Takes out pages that nobody uses, one by one, until `wanted` bytes are gone or nothing more can
  // go: first held ones, then idle ones whose work is done, the largest first. go(page) says
  // whether the page is gone. A page that can't be taken is passed over, and so is one with which
  // more than `most` would go. Returns the first error of unmapping one; `unasked`: the first of
  // asking about its work.
  Status take_idle(Bytes wanted, Bytes most, Status& unasked,
                   const std::function<bool(UnmappedPage)>& go);
  // Gives idle pages back to the driver, by take_idle(), until at most `keep` bytes are left.
  // Returns how much went.
  Result<Bytes> trim(Bytes keep);
  // Unreserves the addresses of a page heap that has no pages. A region that can't be stays.
  void give_back_addresses();
  // Idle pages that may go, the largest first.
  std::vector<Page*> idle_pages();
  // Removes a page that is idle and sleeps.
  Status forget(Page& page);

  // --- Mappings.

  bool has_room_for_mappings(std::size_t more) const {
    return tables_.mappings() + more <= rules_.most_mappings;
  }
  // Retires stitched rows that were not used for long, a few at a time: a program whose sizes never
  // repeat would add rows for ever. Returns at which number of requests to call it again.
  std::uint64_t retire_rows();
  // Tries again to unmap what the driver refused to unmap.
  void unmap_strays();
  Status map(Range at, PhysicalHandle handle);
  // Emits the event before the memory goes, for whoever registered it; on an error emits that it is
  // mapped again. `heap`: for which it was mapped.
  Status unmap_page(PageId page, Range at, HeapId heap);

  // A page's mappings have an order: that of the home row first, then those of its stitched rows.
  struct Mapping {
    Range range;
    HeapId heap;  // for which it was mapped
  };
  static std::size_t mappings_of(const Page& page) { return 1 + page.rows.size(); }
  static Mapping mapping(const Page& page, std::size_t number);
  // While the page sleeps the last ones are gone.
  static bool is_mapped(const Page& page, std::size_t number) {
    return number + page.unmapped < mappings_of(page);
  }

  const std::vector<Range>& regions() const { return regions_; }
  const std::vector<Range>& strays() const { return strays_; }
  const std::vector<StitchedRow*>& retired() const { return retired_; }

 private:
  friend struct TestAccess;

  Result<Range> reserve(Bytes least);
  Status begin_region(Bytes least);
  HeldPage add(UnmappedPage loose);
  void hold(HeldPage page);
  Result<HeldPage> create(Request& request, Bytes size);
  Result<std::vector<HeldPage>> obtain(Request& request, Bytes size);
  Status map_page(const Owner& owner, PageId page, PhysicalHandle handle, Range at);
  Result<std::vector<Page*>> map_home(const Owner& owner, Address at,
                                      const std::vector<HeldPage>& pages);
  void adopt(const Owner& owner, HeldPage segment);
  Status release(const UnmappedPage& page);
  Status give_back(UnmappedPage page);
  Result<UnmappedPage> take_out(Page& page);
  UnmappedPage take_out(HeldPage held);
  Result<bool> is_over(const Page& page, FenceSet& pending);
  Status unmap_last(StitchedRow& row);
  Status unmap_row(StitchedRow& row);
  Status make_room_for_mappings(Request& request, std::size_t more);

  MemoryCalls& device_;
  Timelines& timelines_;
  Observer& observer_;
  TileIndex& index_;
  Budget& budget_;
  PageTables& tables_;
  const PageRules& rules_;
  Placer& placer_;
  std::vector<Range> regions_;  // reserved
  // Mappings without access, which the driver would not take back yet: nobody uses them.
  std::vector<Range> strays_;
  std::vector<StitchedRow*> retired_;  // to be unmapped
  Address looked_at_;                  // the row that retire_rows() came to last
};

}  // namespace weir
