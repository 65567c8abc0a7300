// SPDX-License-Identifier: Apache-2.0
// What a page heap has, for callers outside of it: addresses, pages, sums; and whether all of it
// fits together.
//
// Guarded by the page heap's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/memory/mappings.h"
#include "core/memory/page_heap_state.h"
#include "weir/heap_types.h"

namespace weir {

class PageListing {
 public:
  PageListing(const PageHeapState& heap, const Mappings& mappings)
      : heap_(heap), mappings_(mappings) {}

  // Sizes at this moment.
  struct Totals {
    Bytes total, leased, used;
    Bytes limit;       // of this page heap alone; zero: none
    Bytes peak_total;  // after any request
    std::uint64_t mappings = 0;
    bool short_of_mappings = false;  // the last request failed for want of mappings
  };
  Totals totals() const;
  // Sizes of the kept pages.
  Bytes kept() const;
  // Pages by id, for a snapshot.
  std::vector<PageInfo> pages() const;
  // The pages under a block, in order.
  std::vector<PagePart> parts(Range block) const;
  // The bytes of a block as home addresses, in order.
  std::vector<Range> home_of(Range block) const;
  // All pages that hold bytes of a block, or of the stitched row that it lies in.
  std::vector<PageId> pages_under(Range block) const;
  // Are these the heap's addresses: in its home row, in a stitched row, or where one could be?
  bool has_addresses(Range run) const;

  // Broken invariants, named. `in_use`: the runs given out, as the stream heaps have them.
  std::vector<std::string> validate(const std::vector<Range>& in_use) const;

 private:
  // Calls visit(Page&, offset, size) for the pages under a block that has memory, in order.
  template <class Visitor>
  void visit_pages(Range block, Visitor&& visit) const;

  const PageHeapState& heap_;
  const Mappings& mappings_;
};

}  // namespace weir
