// Memory: physical pages, which of their bytes are in use, where each is mapped, and which heap
// holds its lease. Knows neither what a block is for, nor streams, nor CUDA.
//
// Rules that hold between calls (validate() checks them):
//   used(page) == sum of its used ranges; they are disjoint, sorted, and do not touch
//   used(page) > 0  <=>  the page is leased; a page that is not, is idle: any heap may take it
//   a byte of a mapping is usable by the mapping's heap  <=>  it is not in use, and its page is
//   idle
//                                                            or leased to that heap
//
// Threads: guarded by the lock of whoever owns it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/range_set.h"
#include "core/thread_annotations.h"
#include "weir/device.h"
#include "weir/types.h"

namespace weir {

// A row of mappings side by side, never with a page twice; numbered within the page table.
struct RowId {
  std::uint32_t value = 0;
  constexpr auto operator<=>(const RowId&) const = default;
};

struct Mapping {
  Address at;
  PageId page;
  HeapId heap;  // whose addresses these are
  RowId row;
};

struct Page {
  Bytes size;
  PhysicalHandle handle;
  Bytes used;
  std::map<Bytes, Bytes> used_ranges;  // offset to size
  std::optional<HeapId> lease;
  std::vector<Mapping> mappings;

  // Free bytes at the end and at the start.
  Bytes tail() const;
  Bytes head() const;
};

class PageTable {
 public:
  // Told of every stretch of addresses that its heap may hand out from now on, or no longer.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void usable(HeapId heap, Range addresses) = 0;
    virtual void unusable(HeapId heap, Range addresses) = 0;
  };
  // Pages ordered by a size: that of the page, of its free tail, or of its free head.
  using BySize = std::set<std::pair<Bytes, PageId>>;

  explicit PageTable(Listener& listener) : listener_(listener) {}

  PageId add(PhysicalHandle handle, Bytes size);
  // The page is idle and has no mappings.
  void remove(PageId page);
  // `at` overlaps no other mapping.
  void add_mapping(PageId page, HeapId heap, Address at, RowId row);
  // The page is idle.
  void remove_mapping(Address at);

  // A part of a page. It is free and the page idle or leased to `heap`: it is in use by it now.
  void use(PageId page, Bytes offset, Bytes size, HeapId heap);
  // It is in use; now it is free. When it was the last, the lease ends.
  void free(PageId page, Bytes offset, Bytes size);

  const Page& page(PageId page) const { return pages_.at(page.value); }
  const Mapping& mapping(Address at) const { return mappings_.at(at); }
  bool row_has(RowId row, PageId page) const;

  // Calls visit(page, offset, size) for each part of `range`, which is wholly mapped.
  template <class Visitor>
  void walk(Range range, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    auto it = std::prev(mappings_.upper_bound(range.begin));
    for (Address at = range.begin; at < range.end(); ++it) {
      const Bytes page_size = page(it->second.page).size;
      const Address end = std::min(range.end(), it->first + page_size);
      visit(it->second.page, at - it->first, end - at);
      at = end;
    }
  }

  const std::unordered_map<std::uint32_t, Page>& pages() const { return pages_; }
  const std::map<Address, Mapping>& mappings() const { return mappings_; }
  // Idle pages by size; a heap's pages by the free bytes at their end or start (not zero).
  const BySize& idle() const { return idle_; }
  const BySize& tails(HeapId heap) const { return ends(heap).tails; }
  const BySize& heads(HeapId heap) const { return ends(heap).heads; }

  Bytes total() const { return total_; }    // of all pages
  Bytes leased() const { return leased_; }  // of pages that are not idle
  Bytes used() const { return used_; }      // bytes in use

  // Broken rules, named; `usable(heap)` gives the addresses that the listener holds usable.
  template <class Usable>
  std::vector<std::string> validate(Usable&& usable) const WEIR_NO_THREAD_ANALYSIS {
    std::vector<std::string> broken = validate_pages();
    for (const auto& [heap, expected] : usable_by_recount()) {
      if (!(usable(heap) == expected)) {
        broken.push_back("heap " + std::to_string(heap.value) +
                         ": its usable addresses differ from what its pages say");
      }
    }
    return broken;
  }

 private:
  friend struct TestAccess;
  struct Ends {
    BySize tails, heads;
  };

  const Ends& ends(HeapId heap) const;
  void index(PageId id, const Page& page);
  void unindex(PageId id, const Page& page);
  std::vector<std::string> validate_pages() const;
  std::vector<std::string> validate_indexes() const;
  std::map<HeapId, RangeSet> usable_by_recount() const;

  Listener& listener_;
  std::unordered_map<std::uint32_t, Page> pages_;  // by PageId
  std::map<Address, Mapping> mappings_;
  BySize idle_;
  std::map<HeapId, Ends> ends_;
  std::uint32_t next_page_ = 0;
  Bytes total_, leased_, used_;
};

}  // namespace weir
