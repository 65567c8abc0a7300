// SPDX-License-Identifier: Apache-2.0
// Stitched rows: addresses beside the home row at which pages from several places of it stand side
// by side, so that free bytes in pieces serve one request.
//
// A row begins with the end of a page, or a whole one; whole pages follow; and the last is used
// from its start. Its bytes are ordinary bytes of the home row, and used and freed there. No page
// is in a row twice. Rows outlive their runs: the next request of such a size may have one again,
// if its bytes happen to be free.
//
// Knows addresses and pages; neither streams nor CUDA. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mechanism.h"
#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/memory/home_pages.h"
#include "core/memory/size_bins.h"
#include "core/memory/tile.h"
#include "core/time/fence_set.h"
#include "weir/types.h"

namespace weir {

struct StitchedRow {
  enum class State : std::uint8_t {
    idle,     // its addresses may be given out again
    used,     // a run has them
    retired,  // it is about to be unmapped, as far as it still is mapped
  };

  Address begin;            // where the first page is mapped
  Bytes lead;               // bytes at the start of the first page that are not the row's
  Bytes size;               // bytes of all its pages, but for the lead
  Bytes reserved;           // addresses from `begin` on
  HeapId heap;              // whose request it was mapped for
  std::uint64_t shift = 0;  // its region's (Layout)
  State state = State::idle;
  std::vector<Page*> pages;         // mapped, side by side
  Tile* tile = nullptr;             // used: the run that has it
  std::vector<Tile*> parts;         // used: its bytes, in the home row
  FenceSet users;                   // work of the last run there
  std::uint64_t used_at = 0;        // when a run last came or went, in requests
  StitchedRow* previous = nullptr;  // idle: in its bin
  StitchedRow* next = nullptr;

  Address run() const { return begin + lead; }  // where every run begins
  Bytes size_in_bins() const { return size; }
  // The sizes of its pages, together; the next page is mapped behind them.
  Bytes mapped() const {
    Bytes sum;
    for (const Page* const page : pages) sum += page->size;
    return sum;
  }
  // Does a run of `bytes` fit, and use bytes of every page? (So a page is idle only if the row is.)
  bool fits(Bytes bytes) const {
    return bytes <= size && bytes + pages.back()->size > size && !without(Mechanism::idle_rows);
  }
  // May graphs use a page of it?
  bool kept() const {
    return std::any_of(pages.begin(), pages.end(),
                       [](const Page* page) { return page->kept != Page::Kept::no; });
  }
  // Calls visit(home range) for the parts of a run of `bytes`, in order, until it returns false.
  // Returns whether all were visited.
  template <class Visitor>
  bool visit_parts(Bytes bytes, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    Bytes skip = lead;
    for (const Page* const page : pages) {
      const Bytes part = std::min(bytes, page->size - skip);
      if (!visit(Range{page->home + skip, part})) return false;
      skip = 0_B;
      bytes -= part;
      if (bytes == 0_B) break;
    }
    return true;
  }
  // Calls visit(Page&, offset, size) for what of each page lies under `block`, which is in the row.
  template <class Visitor>
  void visit_pages(Range block, Visitor&& visit) const {
    Bytes skip = block.begin - begin;
    for (Page* const page : pages) {
      const Bytes part = skip < page->size ? std::min(block.size, page->size - skip) : 0_B;
      if (part > 0_B) visit(*page, skip, part);
      block.size -= part;
      skip -= std::min(skip, page->size);
      if (block.size == 0_B) break;
    }
  }
};

struct PageMapping {
  Range at;
  HeapId heap;  // for which it was mapped
};
// That of the home row first, then those of its rows. While the page sleeps, the last ones are gone
// (Page::unmapped).
std::vector<PageMapping> mappings_of(const Page& page);
// Those that the driver has.
std::vector<PageMapping> mapped_of(const Page& page);

class StitchedRows {
 public:
  // Between two rows stays so much unmapped, or the device's granularity if that is more: no run
  // goes from one into the next.
  static constexpr Bytes kGap = 2_MiB;
  // Rows begin at multiples of `granularity`.
  explicit StitchedRows(Bytes granularity = kGap) : gap_(std::max(kGap, granularity)) {}

  // Addresses that were just reserved. The end is never mapped: no row goes from one region into
  // another that lies beside it by chance, which no mapping may.
  void add_region(Range region) {
    regions_[region.begin] = region.end() - gap_;
    vacant_.emplace(region.size - gap_, region.begin);
  }
  // There is no row in it.
  void remove_region(Range region) {
    regions_.erase(region.begin);
    vacant_.erase({region.size - gap_, region.begin});
  }
  bool has_region(Range region) const {
    const auto known = regions_.find(region.begin);
    return known != regions_.end() && known->second == region.end() - gap_;
  }
  // How large a region a row of `bytes` needs.
  Bytes region_for(Bytes bytes) const { return bytes + gap_ * 2; }
  bool has_room(Bytes bytes) const {
    return vacant_.lower_bound({bytes + gap_, Address{}}) != vacant_.end();
  }

  // Could pages of a row stand just there, and is there room for it now?
  bool has_addresses(Range pages) const;
  bool has_room_at(Range pages) const;

  // An empty row with room for pages of `bytes` together: there is room. It may stay empty, and be
  // removed.
  StitchedRow& add(Bytes bytes, HeapId heap);
  // The same, at `begin`: there is room.
  StitchedRow& add_at(Address begin, Bytes bytes, HeapId heap);
  // The page is mapped at the row's end now; it is not in the row yet.
  void append(StitchedRow& row, Page& page);
  // The row's last page is unmapped.
  void drop_last(StitchedRow& row);
  // All pages are in: from now on it is found, and idle. `lead` as above.
  void finish(StitchedRow& row, Bytes lead);
  // It is retired or was never finished, and has no pages.
  void remove(StitchedRow& row);

  // idle -> used, used -> idle, idle -> retired
  void use(StitchedRow& row, std::uint64_t now);
  void free(StitchedRow& row, FenceSet users, std::uint64_t now);
  void retire(StitchedRow& row);

  // The row whose runs begin there; null: none does.
  StitchedRow* at(Address run) const;
  // The row that is mapped there; null: none is.
  StitchedRow* around(Address address) const;
  // The first row that begins behind `address`, or else the first of all; null: there is none.
  StitchedRow* next_after(Address address) const;
  const SizeBins<StitchedRow>& idle() const { return idle_; }
  template <class Visitor>
  void visit_all(Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (const auto& [begin, row] : rows_) visit(*row);
  }
  std::size_t mappings() const { return mappings_; }
  std::size_t count() const { return rows_.size(); }

  // Broken rules, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;

  // What is vacant between the rows before and behind an address of a region.
  Range vacancy_around(Address address) const;

  const Bytes gap_;
  std::map<Address, Address> regions_;                    // begin and end
  std::map<Address, std::unique_ptr<StitchedRow>> rows_;  // by begin
  SizeBins<StitchedRow> idle_;
  std::set<std::pair<Bytes, Address>> vacant_;  // what lies between rows, by size
  std::size_t mappings_ = 0;
};

}  // namespace weir
