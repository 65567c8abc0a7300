// SPDX-License-Identifier: Apache-2.0
// Memory: the physical pages of one page heap, each mapped once in the home row, and which of them
// have bytes in use.
//
// Knows neither what a block is for, nor streams, nor CUDA. Not thread-safe.
//
// Rules that hold between calls (validate() checks them):
//   a page begins at a multiple of GranuleMap::kGranule and is made of granules; no two overlap
//   a page is leased  <=>  bytes of it are in use
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/memory/granule_map.h"
#include "weir/device.h"
#include "weir/types.h"

namespace weir {

struct StitchedRow;

struct Page {
  // May graphs use its bytes, so that it must not be unmapped? Or would a graph that is being
  // captured?
  enum class Kept : std::uint8_t { no, for_now, yes };

  PageId id;
  HeapId heap;  // whose request it was mapped for
  Address home;
  Bytes size;
  Bytes used;
  std::optional<HeapId> lease;  // the heap that used it first since it was idle
  Kept kept = Kept::no;
  std::uint32_t unmapped = 0;      // of its mappings, that of `home` included, while it sleeps
  PhysicalHandle handle;           // 0: it sleeps, without memory
  std::vector<StitchedRow*> rows;  // that it is part of

  Range range() const { return {home, size}; }
  bool idle() const { return used == 0_B; }
  // And all its mappings?
  bool has_memory() const { return handle != PhysicalHandle{} && unmapped == 0; }
};

class HomePages {
 public:
  using Pages = std::map<std::uint32_t, Page>;  // by PageId; a page stays where it is

  // `id` is no other page's; `home` overlaps no other page.
  Page& add(PageId id, PhysicalHandle handle, Range home, HeapId heap);
  // The page is idle and in no row.
  void remove(Page& page);

  // Whole grains of home addresses, all mapped. use(): marks free bytes as in use. free(): marks
  // used bytes as free. Calls visit(Page&, changed) for each page; `changed`: its lease began
  // (ended).
  template <class Visitor>
  void use(Range range, HeapId heap, Visitor&& visit) WEIR_NO_THREAD_ANALYSIS {
    used_ += range.size;
    walk(range, [&](Page& page, Bytes, Bytes size) WEIR_NO_THREAD_ANALYSIS {
      const bool begins = page.idle();
      if (begins) {
        page.lease = heap;
        leased_ += page.size;
      }
      page.used += size;
      visit(page, begins);
    });
  }
  template <class Visitor>
  void free(Range range, Visitor&& visit) WEIR_NO_THREAD_ANALYSIS {
    used_ -= range.size;
    walk(range, [&](Page& page, Bytes, Bytes size) WEIR_NO_THREAD_ANALYSIS {
      page.used -= size;
      if (page.idle()) {
        page.lease.reset();
        leased_ -= page.size;
      }
      visit(page, page.idle());
    });
  }

  // Calls visit(Page&, offset, size) for each part of `range`, home addresses that are mapped.
  template <class Visitor>
  void walk(Range range, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (Address at = range.begin; at < range.end();) {
      Page& page = this->at(at);
      const Bytes offset = at - page.home;
      const Bytes size = std::min(range.end() - at, page.size - offset);
      visit(page, offset, size);
      at = at + size;
    }
  }
  // The page at a home address, which is mapped.
  Page& at(Address home) const { return *granules_.at(home).page; }
  // Is all of `range` home addresses that are mapped?
  bool is_mapped(Range range) const;

  // If there is no page left, what finds pages by their addresses gives back its memory.
  void shrink() {
    if (pages_.empty()) granules_ = GranuleMap{};
  }

  const Pages& all() const { return pages_; }
  Pages& all() { return pages_; }

  Bytes total() const { return total_; }    // of all pages
  Bytes leased() const { return leased_; }  // of pages that are not idle
  Bytes used() const { return used_; }      // bytes in use

  // Broken rules, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  Pages pages_;
  GranuleMap granules_;
  Bytes total_, leased_, used_;
};

}  // namespace weir
