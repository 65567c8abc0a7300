// Disjoint ranges of addresses, merged where they touch; found by address or by size. Each call
// takes time logarithmic in the number of ranges. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/range.h"
#include "weir/types.h"

namespace weir {

class RangeSet {
 public:
  // `range` is not empty and shares no address with the set.
  void insert(Range range);
  // The set contains the whole of `range`.
  void erase(Range range);

  // The smallest member of at least `size`; of equals, the one at the lowest address.
  std::optional<Range> best_fit(Bytes size) const;
  std::vector<Range> members() const;  // by address

 private:
  using Members = std::map<Address, Bytes>;

  void add(Range range);
  Members::iterator remove(Members::iterator member);

  Members by_address_;
  std::set<std::pair<Bytes, Address>> by_size_;  // the same members
};

}  // namespace weir
