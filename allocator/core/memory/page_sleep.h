// SPDX-License-Identifier: Apache-2.0
// Sleep and wake of a page heap: its pages give their physical memory back, and later get other
// memory at the same addresses. Each call moves one page one step, so after a driver call that
// failed either direction goes on from there.
//
// A page's mappings go from the last to the first, and come from the first to the last;
// Page::unmapped counts those that are gone.
//
// Threads: each call takes the page heap's lock.
#pragma once

#include <vector>

#include "core/memory/page_heap.h"

namespace weir {

class PageSleep {
 public:
  // `heap` must outlive this.
  explicit PageSleep(PageHeap& heap) : heap_(heap) {}

  // Asleep: no request is served (ErrorCode::asleep), and pages come and go by the calls here
  // alone; frees go on. To be awake again it needs the memory of all its pages.
  void set_asleep(bool asleep);
  // Gives idle pages back to the driver, asleep or not.
  Result<Bytes> give_idle();

  struct SleepingPage {
    PageId page;
    Range home;
    std::vector<Range> in_use;  // home addresses, in order; close ones are one
  };
  // The pages that have memory, by id. `kept_whole`: all bytes of pages that graphs keep count as
  // in use.
  std::vector<SleepingPage> pages_to_sleep(bool kept_whole) const;
  // The bytes of a block as home addresses, in order.
  std::vector<Range> home_of(Range block) const;
  // All pages that hold bytes of a block, or of the stitched row that it lies in.
  std::vector<PageId> pages_under(Range block) const;

  // The page loses its mappings and its memory, as far as it has any; all work on it is done.
  // On an error it may have lost some: either call goes on from there.
  Status take_memory(PageId page);
  // The page gets the memory and the mappings that it lacks; its bytes are undefined. False: nobody
  // needs the page any more, and it is gone. Errors: out_of_memory; device.
  Result<bool> renew_memory(PageId page);
  // Has the page, or have all pages, memory and all mappings?
  bool has_memory(PageId page) const;
  bool has_all_memory() const;
  Bytes absent_bytes() const;

 private:
  PageHeap& heap_;
};

}  // namespace weir
