// SPDX-License-Identifier: Apache-2.0
// The physical pages of one page heap, each mapped once in the home row.
//
// A page counts no bytes: it is idle exactly if it lies within one run of free tiles. Knows neither
// what a tile is for, nor streams, nor CUDA. Not thread-safe.
//
// A page begins at a multiple of TileIndex::kGranule and consists of granules; no two overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/memory/tile_index.h"
#include "weir/device.h"
#include "weir/types.h"

namespace weir {

// A page that is lent (page_loans.h): what it is in the page heap that borrows it, the graph pool
// that lends it, and who used it last, of that page heap's timelines: a stream of launches, or all
// of the context; none: nobody.
struct Lent {
  PageId page;
  std::uint64_t pool;
  std::optional<TimelineId> user;
};

// A page on its way from one heap to another, or to the driver: not mapped, and used by nobody. If
// it is lent, it is mapped for its lender.
struct UnmappedPage {
  PhysicalHandle handle;
  Bytes size;
  std::optional<Lent> lent;
};

// A page that a heap has and that is not mapped. It is mapped before new ones are created.
struct HeldPage {
  PageId id;
  UnmappedPage page;
};

struct Page {
  // Must the page stay mapped, since graphs may use its bytes? `for_now`: a graph that is being
  // captured would.
  enum class Kept : std::uint8_t { no, for_now, yes };

  PageId id;
  HeapId heap;  // whose request it was mapped for
  Address home;
  Bytes size;
  std::uint64_t shift = 0;      // its region's (Layout)
  std::optional<HeapId> lease;  // the heap that used it first since it was idle; none: it is idle
  Kept kept = Kept::no;
  bool has_contents = false;  // kept: a graph may read bytes of it that it did not write
  bool lent = false;          // it sleeps, since its memory is another page heap's
  // The graph pool that lends its memory (page_loans.h), or the last that a number here can name;
  // 0: none.
  std::uint32_t lent_by = 0;
  std::uint32_t unmapped = 0;       // while it sleeps: how many of its mappings are gone
  std::uint32_t lent_mappings = 0;  // of these, the first ones that are there, for it is lent
  PhysicalHandle handle;            // 0: it sleeps, without memory
  std::vector<StitchedRow*> rows;   // the rows that it is part of

  Range range() const { return {home, size}; }
  Address end() const { return home + size; }
  bool idle() const { return !lease; }
  bool sleeps() const { return handle == PhysicalHandle{}; }
  // Has it its memory, and all its mappings?
  bool has_memory() const { return !sleeps() && unmapped == 0; }
};

class HomePages {
 public:
  using Pages = std::pmr::map<std::uint32_t, Page>;  // by PageId; a page stays where it is

  explicit HomePages(TileIndex& index) : index_(index) {}

  // `id` is new; `home` lies in a region and overlaps no other page.
  Page& add(PageId id, PhysicalHandle handle, Range home, HeapId heap);
  // The page is idle and in no row.
  void remove(Page& page);
  // Removes all pages, in use or not.
  void clear() {
    while (!pages_.empty()) remove(pages_.begin()->second);
  }

  // Calls visit(Page&, offset, size) for each page under `range`, home addresses that are mapped,
  // with the part of the page that lies in `range`.
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
  Page& at(Address home) const { return *index_.page(home); }
  // Are all addresses of `range` home addresses, and mapped?
  bool is_mapped(Range range) const;
  // The pages that lie whole in a range that is mapped; empty: none does.
  Range whole_in(Range range) const {
    const Page& first = at(range.begin);
    const Page& last = at(range.end() - kGrain);
    const Address begin = first.home == range.begin ? first.home : first.end();
    const Address end = last.end() == range.end() ? last.end() : last.home;
    return begin < end ? Range{begin, end - begin} : Range{range.begin, 0_B};
  }

  const Pages& all() const { return pages_; }
  Pages& all() { return pages_; }
  Bytes total() const { return total_; }  // of all pages

  // Broken rules, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  TileIndex& index_;
  // Many pages come and go at once: what they leave is for other pages alone, so that no other
  // request for host memory has to search it.
  std::pmr::unsynchronized_pool_resource records_;
  Pages pages_{&records_};
  Bytes total_;
};

}  // namespace weir
