// SPDX-License-Identifier: Apache-2.0
// Physical pages before they are mapped and after: they come from the driver or from other pools,
// are held, and go. From the moment that a page comes it counts in the budget.
//
// Guarded by the page heap's lock.
#pragma once

#include <vector>

#include "core/memory/page_heap_state.h"
#include "core/memory/request.h"
#include "weir/result.h"

namespace weir {

class PageSupply {
 public:
  explicit PageSupply(PageHeapState& heap) : heap_(heap) {}
  // Releases the held pages.
  ~PageSupply();
  PageSupply(const PageSupply&) = delete;
  PageSupply& operator=(const PageSupply&) = delete;

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
  // A page comes from elsewhere, and is held.
  void receive(UnmappedPage page) { hold(add(page)); }
  // A page that is neither held nor mapped goes: it is the caller's.
  UnmappedPage part_with(HeldPage page);
  // Takes one that is held, by its place in PageTables::held.
  HeldPage take_held(std::size_t place);
  // To the driver.
  Status release(const UnmappedPage& page);
  // Counts, and emits, that a page has its memory now (EventKind::create), or lost it (release).
  void note(EventKind kind, PageId page, Bytes size);

 private:
  HeldPage add(UnmappedPage page);
  Result<PhysicalHandle> create_page(Request& request, Bytes size);

  PageHeapState& heap_;
};

}  // namespace weir
