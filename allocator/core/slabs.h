// Small blocks of one stream heap: packed into slabs, which are ordinary runs of the page heap.
//
// The smallest free stretch that fits is taken. The last grain of a slab is never given out, so
// that the free stretches of two slabs side by side stay two. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/fenced_ranges.h"
#include "core/range_set.h"
#include "weir/types.h"

namespace weir {

class Slabs {
 public:
  static constexpr Bytes kSlab = 2_MiB;
  // The largest block that is small.
  static constexpr Bytes kLargest = 256_KiB;

  struct Emptied {
    Range slab;
    FenceSet fences;  // of work on other streams that may still use it
  };

  // A place for a block of `size` (a multiple of kGrain), or nothing: then add a slab.
  std::optional<Address> allocate(Bytes size);
  // `slab` is kSlab long.
  void add(Range slab);
  // A block goes back, for others once `fences` are satisfied. When it was the slab's last, the
  // slab goes too.
  std::optional<Emptied> free(Range block, const FenceSet& fences);

  // Fences of other streams on these bytes, which are about to be used again.
  void collect(Range block, FenceSet& into) const {
    fenced_.collect(block.begin.value, block.end().value, into);
  }
  template <class Done>
  void forget_fences_if(Done&& done) {
    fenced_.forget_if(done);
  }
  bool has_fences() const { return !fenced_.empty(); }

  // The slabs held, by address.
  std::vector<Range> slabs() const;
  // Broken invariants; `blocks`: the small blocks that are live, by address.
  std::vector<std::string> validate(const std::vector<Range>& blocks) const;

 private:
  friend struct TestAccess;
  std::map<Address, Bytes> used_;  // of each slab
  RangeSet free_;
  FencedRanges fenced_;  // by address
};

}  // namespace weir
