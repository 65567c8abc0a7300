// Addresses: the reserved ranges of one stream heap. Which addresses it may hand out, and where the
// next mapping goes. Knows neither pages, nor streams, nor CUDA. Not thread-safe.
//
// Mappings stand in rows without a gap; between two rows stays at least kGap unmapped, so that no
// range of usable addresses ever runs from one row into the next.
#pragma once

#include "core/range_set.h"
#include "weir/types.h"

namespace weir {

class Arena {
 public:
  static constexpr Bytes kGap = 2_MiB;

  // Addresses that were just reserved. They are larger than three gaps.
  void add_region(Range region) {
    if (base_ == Address{}) base_ = region.begin;
    vacant_.insert({region.begin, region.size - kGap});  // the gap keeps two regions apart
  }

  // How far `at` is from where the arena began: the earlier mapped, the less, by and large.
  Bytes position(Address at) const { return at < base_ ? base_ - at : at - base_; }

  RangeSet& usable() { return usable_; }
  const RangeSet& usable() const { return usable_; }

  // Where the last mapping of the current row ends: the next one goes there.
  Address frontier() const { return frontier_; }
  // May the current row grow by `size`?
  bool has_room(Bytes size) const {
    return frontier_ != Address{} && vacant_.contains({frontier_, size + kGap});
  }
  // Begins a row with room for `size`. False: no region has it; add one of row_size(size).
  bool begin_row(Bytes size) {
    const std::optional<Range> hole = vacant_.best_fit(row_size(size));
    if (!hole) return false;
    frontier_ = hole->begin + kGap;
    return true;
  }
  static constexpr Bytes row_size(Bytes size) { return size + kGap * 2; }

  // The next `size` addresses of the current row are about to be mapped.
  Address take(Bytes size) {
    const Address at = frontier_;
    vacant_.erase({at, size});
    frontier_ = at + size;
    return at;
  }
  // A mapping is gone.
  void give_back(Range mapped) { vacant_.insert(mapped); }

  const RangeSet& vacant() const { return vacant_; }

 private:
  friend struct TestAccess;
  RangeSet usable_;  // mapped, and free underneath
  RangeSet vacant_;  // reserved, and not mapped
  Address frontier_;
  Address base_;
};

}  // namespace weir
