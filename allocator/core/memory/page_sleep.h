// SPDX-License-Identifier: Apache-2.0
// Sleep and wake of a page heap: its pages give their physical memory back, and later get other
// memory at the same addresses. Each call moves one page one step, so after a driver call that
// failed either direction goes on from there.
//
// A page's mappings go from the last to the first, and come from the first to the last;
// Page::unmapped counts those that are gone.
//
// Guarded by the page heap's lock.
#pragma once

#include <vector>

#include "core/memory/mappings.h"
#include "core/memory/page_heap_state.h"
#include "core/memory/page_supply.h"
#include "weir/result.h"

namespace weir {

class PageSleep {
 public:
  PageSleep(PageHeapState& heap, PageSupply& supply, Mappings& mappings)
      : heap_(heap), supply_(supply), mappings_(mappings) {}

  // Asleep: no request is served (ErrorCode::asleep), and pages come and go by the calls here
  // alone; frees go on. To be awake again it needs the memory of all its pages.
  void set_asleep(bool asleep) { heap_.tables.asleep.store(asleep, std::memory_order_release); }
  // Gives idle pages back to the driver, asleep or not.
  Result<Bytes> give_idle() { return supply_.give_to_driver_though_asleep(PageSupply::kUnlimited); }

  struct SleepingPage {
    PageId page;
    Range home;
    std::vector<Range> in_use;  // home addresses, in order; close ones are one
  };
  // The pages that have memory, by id. `kept_whole`: all bytes of pages that graphs keep count as
  // in use.
  std::vector<SleepingPage> pages_to_sleep(bool kept_whole) const;

  // The page loses its mappings and its memory, as far as it has any; all work on it is done.
  // On an error it may have lost some: either call goes on from there.
  Status take_memory(PageId page);
  // The page gets the memory and the mappings that it lacks; its bytes are undefined. False: nobody
  // needs the page any more, and it is gone. Errors: out_of_memory; device.
  Result<bool> renew_memory(PageId page);
  // Is the page there, with memory and all mappings?
  bool has_memory(PageId page) const {
    const auto found = heap_.tables.pages.all().find(page.value);
    return found != heap_.tables.pages.all().end() && found->second.has_memory();
  }
  // Does somebody need the page, which has no memory?
  bool needs_memory(PageId page) const;
  Bytes absent_bytes() const { return heap_.tables.absent_bytes; }

 private:
  void note_lease(const Page& page, EventKind kind);

  PageHeapState& heap_;
  PageSupply& supply_;
  Mappings& mappings_;
};

}  // namespace weir
