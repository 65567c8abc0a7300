// SPDX-License-Identifier: Apache-2.0
// The addresses of a page heap, and the driver's mappings there: reserves regions, for the home row
// and for stitched rows; maps and unmaps pages; gives up stitched rows, which are mappings that the
// heap can do without.
//
// A segment of plain memory is a region of its own. It is mapped where the driver put it, and stays
// so: of the calls to map and unmap it needs the events alone.
//
// Guarded by the page heap's lock.
#pragma once

#include <cstddef>
#include <vector>

#include "core/memory/page_heap_state.h"
#include "core/memory/request.h"
#include "weir/device.h"
#include "weir/result.h"

namespace weir {

class Mappings {
 public:
  explicit Mappings(PageHeapState& heap) : heap_(heap) {}
  // Everything is unmapped and unreserved, in use or not, and all pages are held.
  ~Mappings();
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  // --- Addresses.

  // Vacant addresses of the home row for `bytes`, in a new region if need be.
  Result<Address> room_for(Bytes bytes);
  // Afterwards a stitched row of `bytes` has room.
  Status have_room_for_row(Bytes bytes);
  // There is memory now at these home addresses, and its bytes are free; or there is none any more.
  void fill(Range home);
  void vacate(Range home);
  // Unreserves the addresses of a page heap that has no pages. A region that can't be stays.
  void give_back_addresses();

  // --- Mappings.

  // Unmaps strays, and the idle stitched rows in the range that the device is done with.
  Status vacate_rows(Range range);
  // Unmaps strays, and gives up idle stitched rows, as far as needed, where the device is done with
  // them. The caller has nothing mapped yet.
  Status have_room(Request& request, std::size_t more);

  // Maps the page there, and emits so. Where access can't be set it is not mapped; should the
  // driver not even take the mapping back, it is a stray.
  Status map(const Owner& owner, const HeldPage& page, Address at);
  Status map(PhysicalHandle handle, Range at);
  // Emits the event before the memory goes, for whoever registered it; on an error emits that it is
  // mapped again.
  Status unmap(PageId page, const PageMapping& mapping);
  // Tries again to unmap the strays.
  void unmap_strays();
  // Sets access again for every mapping.
  Status renew_access();

  // Nobody gets the row any more; retire_rows() unmaps it.
  void retire(StitchedRow& row);
  // Unmaps a row that nobody uses. On an error it is retired, with what is still mapped.
  Status unmap_row(StitchedRow& row);
  // Unmaps all rows that the page is part of.
  Status unmap_rows(Page& page);
  // Retires stitched rows that were not used for long, a few at a time: a program whose sizes never
  // repeat would add rows for ever. Returns at which number of requests to call it again.
  std::uint64_t retire_rows();

  // Reserved addresses; the first region of the heap is number 0.
  struct Region : Range {
    std::uint64_t number = 0;
    Range range() const { return {begin, size}; }
  };
  const std::vector<Region>& regions() const { return regions_; }
  // Layout::shift() of the region that the address lies in.
  std::uint64_t shift_at(Address at) const;
  // Mappings without access, which the driver would not take back yet: nobody uses them.
  const std::vector<Range>& strays() const { return strays_; }
  // Rows that are to be unmapped.
  const std::vector<StitchedRow*>& retired() const { return retired_; }

 private:
  friend struct TestAccess;
  bool has_room(std::size_t more) const {
    return heap_.tables.mappings() + more <= heap_.rules.most_mappings;
  }
  Result<Range> reserve(Bytes least);
  Status unmap_last(StitchedRow& row);

  PageHeapState& heap_;
  std::vector<Region> regions_;
  std::uint64_t regions_in_all_ = 0;
  std::vector<Range> strays_;
  std::vector<StitchedRow*> retired_;
  Address looked_at_;  // the row that retire_rows() came to last
};

}  // namespace weir
