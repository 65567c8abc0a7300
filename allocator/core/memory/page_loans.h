// SPDX-License-Identifier: Apache-2.0
// Loans of pages between two page heaps of a device: the scratch of graphs, lent between launches.
//
// Scratch is what a graph pool keeps for its graphs and what has no contents between launches: no
// block lies on it, and none did when a capture began or ended. The lender's page stays mapped at
// the addresses that its graphs know, and counts as asleep there; the borrower maps the same memory
// once more, as a page of its own. Both must not use it at a time: the lender's launches and the
// borrower's blocks wait for each other on the GPU, as any two uses of the borrower's page do
// (scratch_loans.h).
//
// Guarded by the page heap's lock.
#pragma once

#include <optional>
#include <vector>

#include "core/memory/page_heap_state.h"
#include "core/memory/page_supply.h"
#include "weir/result.h"

namespace weir {

class PageLoans {
 public:
  PageLoans(PageHeapState& heap, PageSupply& supply) : heap_(heap), supply_(supply) {}

  // --- Of the lender.

  struct Loan {
    PageId page;  // the lender's
    UnmappedPage memory;
  };
  // Pages that may be lent, the largest first.
  std::vector<Page*> scratch() const;
  // Scratch of at least `wanted` bytes, or all that there is, and not more than `most`: the largest
  // pages first. Under Trust::context the borrower waits for all work so far of all streams.
  std::vector<Loan> lend(Bytes wanted, Bytes most);
  // The borrower has the page's memory no more: it is the lender's again. False: part_with() failed
  // half-way, and the page lacks mappings until PageSleep::renew_memory().
  bool take_back(PageId page, PhysicalHandle memory);
  // Has the lent page all its mappings?
  bool is_whole(PageId page) const {
    const Page& lent = heap_.tables.pages.all().at(page.value);
    return lent.lent_mappings == lent.unmapped;
  }
  // The page's memory stays the borrower's: the page is unmapped, and asleep until it gets other
  // memory (PageSleep::renew_memory()). Work on it is done. On an error it may be called again.
  Status part_with(PageId page);

  // --- Of the borrower.

  // Where the page is mapped, if no block lies on it (empty: it is held, and not mapped yet); none:
  // it is in use.
  std::optional<Range> idle(PageId page) const;
  // The work that still uses the page, which is idle.
  FenceSet users(PageId page) const;
  // The page, which is idle, goes, and its memory is the lender's; work on it is done. Errors:
  // device (the page is there still).
  Status give_back(PageId page);
  // The memory is the borrower's own from now on.
  void keep(PageId page);

 private:
  // The page's first mappings count as there, or as gone; the driver is told nothing.
  void note_mappings(const Page& page, std::size_t first, EventKind kind);

  PageHeapState& heap_;
  PageSupply& supply_;
};

}  // namespace weir
