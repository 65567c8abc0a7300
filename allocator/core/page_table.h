// Memory: physical pages, which of their bytes are in use, where each is mapped, and which heap
// holds its lease. Knows neither what a block is for, nor streams, nor CUDA.
//
// Rules that hold between calls (validate() checks them):
//   used(page) == sum of its used ranges; they are disjoint, sorted, and do not touch
//   a mapping begins at a multiple of GranuleMap::kGranule and is as long as its page, which is
//   made of granules
//   used(page) > 0  <=>  the page is leased; a page that is not, is idle: any heap may take it
//   a byte of a mapping is usable by the mapping's heap  <=>  it is not in use, and its page is
//   idle
//                                                             or leased to that heap
//
// Which bytes are usable a listener is told, for those that look for a place: see tell().
//
// Threads: guarded by the lock of whoever owns it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/page_table_granules.h"
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

// In a list of its page's.
struct Mapping {
  // What may be given out here: anything that fits; only what was given out here before, and is
  // asked for by its address; nothing, as the mapping is about to go.
  enum class Gives : std::uint32_t { anything, known, nothing };

  Address at;
  HeapId heap;                // whose addresses these are
  std::uint32_t used_at = 0;  // PageTable::uses() when bytes here last were given out or came back
  RowId row;
  std::uint32_t used_grains : 28 = 0;  // of kGrain: in use, that were given out here
  Gives gives : 2 = Gives::anything;
  // Does the listener hold what is free here usable? (All of a page that was taken since.)
  std::uint32_t told : 1 = 0;
  std::uint32_t listed : 1 = 0;  // is it on the list of those that its heap may have to be told of?

  bool offered() const { return gives == Gives::anything; }
  bool retired() const { return gives == Gives::nothing; }
};
static_assert(sizeof(Mapping) == 24);  // there are several for each page

struct PageMapping : Mapping {
  PageId page;
};

struct Page {
  std::optional<HeapId> lease;
  Address home;  // its first mapping's; none: Address{}
  Bytes size;
  PageId id;
  std::uint32_t slot = 0;  // dense: another page's once this one is gone
  Bytes used;
  PhysicalHandle handle;
  // Where stretches in use begin and end, in turn, rising.
  std::vector<Bytes> edges;
  std::vector<Mapping> mappings;

  // Free bytes at the end and at the start.
  Bytes tail() const { return edges.empty() ? size : size - edges.back(); }
  Bytes head() const { return edges.empty() ? size : edges.front(); }
  // Offset and size of each stretch in use.
  std::vector<std::pair<Bytes, Bytes>> used_ranges() const;

  // What the page table's indexes say of the page, while they are behind.
  struct Indexed {
    enum class Where : std::uint8_t { nowhere, idle, ends };

    bool current = false;  // else the page is on the list of those to be indexed again
    Where where = Where::nowhere;
    HeapId heap;  // whose ends
    Bytes tail, head;
  };
  mutable Indexed indexed;
};

class PageTable {
 public:
  // Told of every stretch of addresses that its heap may hand out from now on, or no longer: at no
  // more than kMostOffered or so of the heap's aliases of a page: the first, those that have bytes
  // in use, and those that were used last.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void usable(HeapId heap, Range addresses) = 0;
    virtual void unusable(HeapId heap, Range addresses) = 0;
  };
  // Pages ordered by a size: that of the page, of its free tail, or of its free head.
  using BySize = std::set<std::pair<Bytes, PageId>>;

  // Each alias that is offered costs a little whenever bytes of its page come or go, and a request
  // that nothing is remembered of finds the same bytes at any.
  static constexpr int kMostOffered = 4;

  explicit PageTable(Listener& listener) : listener_(listener) {}

  // `id` is no other page's, now or before.
  void add(PageId id, PhysicalHandle handle, Bytes size);
  // The page is idle and has no mappings.
  void remove(PageId page);
  // `at` overlaps no other mapping.
  void add_mapping(PageId page, HeapId heap, Address at, RowId row);
  // The page is idle, or the mapping is retired.
  void remove_mapping(Address at);
  // Nothing is in use at a mapping's addresses; nothing will be, from now on, until restore().
  void retire(Address at);
  void restore(Address at);
  bool is_retired(Address at) const;

  // A part of a page. It is free and the page idle or leased to `heap`: it is in use by it now.
  void use(PageId page, Bytes offset, Bytes size, HeapId heap);
  // It is in use; now it is free. When it was the last, the lease ends.
  void free(PageId page, Bytes offset, Bytes size);

  // The same for each part of `run`, addresses of `heap`'s and whole grains (kGrain). Calls
  // visit(page, offset, size, changed) for each afterwards; `changed`: the lease began (ended).
  template <class Visitor>
  void use(Range run, HeapId heap, Visitor&& visit) WEIR_NO_THREAD_ANALYSIS {
    if (++uses_ == kUsesEnd) [[unlikely]]
      lower_uses();
    walk_pages(run, [&](Page& page, Bytes offset, Bytes size, Address at) WEIR_NO_THREAD_ANALYSIS {
      const bool leases = !page.lease;
      use_part(page, offset, size, heap, at);
      visit(std::as_const(page), offset, size, leases);
    });
    listener_.unusable(heap, run);
  }
  template <class Visitor>
  void free(Range run, HeapId heap, Visitor&& visit) WEIR_NO_THREAD_ANALYSIS {
    walk_pages(run, [&](Page& page, Bytes offset, Bytes size, Address at) WEIR_NO_THREAD_ANALYSIS {
      free_part(page, offset, size, at);
      visit(std::as_const(page), offset, size, !page.lease);
    });
    listener_.usable(heap, run);
  }

  // The listener learns of pages that other heaps took, or gave back, only here: what comes and
  // goes between two looks of a heap costs it nothing.
  void tell(HeapId heap);
  // May `heap` hand out all of `run`, whatever the listener holds?
  bool is_usable(Range run, HeapId heap) const;

  const Page& page(PageId page) const { return pages_.at(page.value); }
  // The one that begins at `at`.
  PageMapping mapping(Address at) const;
  bool row_has(RowId row, PageId page) const;

  // Calls visit(page, offset, size) for each part of `range`, which is wholly mapped.
  template <class Visitor>
  void walk(Range range, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    walk_pages(range, [&](const Page& page, Bytes offset, Bytes size, Address)
                          WEIR_NO_THREAD_ANALYSIS { visit(page, offset, size); });
  }
  // Calls visit(page, where it begins) for each page under `range`, until it returns false.
  template <class Visitor>
  void walk_while(Range range, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (Address at = range.begin; at < range.end();) {
      const GranuleMap::Entry& entry = granules_.at(at);
      const Address begin = at - entry.offset - Bytes{at.value % GranuleMap::kGranule.count};
      if (!visit(std::as_const(*entry.page), begin)) return;
      at = begin + entry.page->size;
    }
  }
  // `at` is mapped. Its page will be looked up soon, and looked at: the processor fetches both.
  void expect(Address at) const { __builtin_prefetch(&granules_.at(at)); }
  void expect_page(Address at) const { __builtin_prefetch(granules_.at(at).page); }
  // Is every address of `range` mapped?
  bool is_mapped(Range range) const;

  const std::unordered_map<std::uint32_t, Page>& pages() const { return pages_; }
  std::size_t mappings() const { return mappings_; }
  // Numbers the runs that were taken into use: the last one has this. (Before 32 bits run out, it
  // and all of Mapping::used_at are lowered by as much.)
  std::uint32_t uses() const { return uses_; }
  // By address.
  std::vector<PageMapping> list_mappings() const;
  // Slots of pages are below this.
  std::uint32_t slots() const { return slots_; }
  // Idle pages by size; a heap's pages by the free bytes at their end or start (not zero).
  // The answer holds until the table changes.
  const BySize& idle() const { return refresh(), idle_; }
  const BySize& tails(HeapId heap) const { return ends(heap).tails; }
  const BySize& heads(HeapId heap) const { return ends(heap).heads; }

  Bytes total() const { return total_; }    // of all pages
  Bytes leased() const { return leased_; }  // of pages that are not idle
  Bytes used() const { return used_; }      // bytes in use

  // Broken rules, named; `usable(heap)` gives the addresses that the listener holds usable, as it
  // was told last.
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

  // Calls visit(page, offset, size, where the page begins).
  template <class Visitor>
  void walk_pages(Range range, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (Address at = range.begin; at < range.end();) {
      const GranuleMap::Entry& entry = granules_.at(at);
      const Bytes offset = entry.offset + Bytes{at.value % GranuleMap::kGranule.count};
      const Bytes size = std::min(range.end() - at, entry.page->size - offset);
      visit(*entry.page, offset, size, at - offset);
      at = at + size;
    }
  }

  static constexpr std::uint32_t kUsesEnd = ~std::uint32_t{0};
  void lower_uses();
  // `through`: the mapping that it is given out at, of which the caller tells the listener; none
  // where it is Address{}.
  void use_part(Page& page, Bytes offset, Bytes size, HeapId heap, Address through);
  void free_part(Page& page, Bytes offset, Bytes size, Address through);

  void offer(const Page& page, Mapping& mapping);
  void withdraw(const Page& page, Mapping& mapping, Mapping::Gives gives);
  void withdraw_long_unused(Page& page, HeapId heap, int most);
  void list(Mapping& mapping);
  bool is_listed(const Mapping& mapping) const;

  // The indexes by size are only needed where a request fits nowhere, so they are brought up to
  // date when somebody looks.
  void outdate(const Page& page) {
    if (!page.indexed.current) return;
    page.indexed.current = false;
    outdated_.push_back(page.id);
  }
  void refresh() const;
  void unindex(const Page& page) const;
  const Ends& ends(HeapId heap) const;
  std::vector<std::string> validate_pages() const;
  std::vector<std::string> validate_mappings() const;
  std::vector<std::string> validate_indexes() const;
  std::map<HeapId, RangeSet> usable_by_recount() const;

  Listener& listener_;
  std::unordered_map<std::uint32_t, Page> pages_;  // by PageId; a page stays where it is
  GranuleMap granules_;
  std::size_t mappings_ = 0;
  std::uint32_t uses_ = 0;
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t slots_ = 0;
  Bytes total_, leased_, used_;

  std::vector<std::vector<Address>> untold_;  // by heap: mappings that are `listed`, and some gone

  mutable BySize idle_;
  mutable std::map<HeapId, Ends> ends_;
  mutable std::vector<PageId> outdated_;  // pages that the two do not show as they are
};

}  // namespace weir
