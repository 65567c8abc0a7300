// Disjoint ranges of addresses, merged where they touch; found by address or by size.
//
// Knows numbers only: not what backs them, nor what they are for. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "weir/types.h"

namespace weir {

struct Range {
  Address begin;
  Bytes size;

  Address end() const { return begin + size; }
  bool contains(Range other) const { return begin <= other.begin && other.end() <= end(); }
  friend bool operator==(const Range&, const Range&) = default;
};

class RangeSet {
 public:
  // `range` is not empty and shares no address with the set.
  void insert(Range range);
  // The set contains the whole of `range`.
  void erase(Range range);
  // Takes what there is of `range` out.
  void erase_any(Range range);

  bool empty() const { return by_address_.empty(); }
  bool contains(Range range) const;
  // Is any address of `range` in the set?
  bool overlaps(Range range) const;
  // The member that `address` lies in.
  std::optional<Range> containing(Address address) const;
  // The member that ends exactly at `end`.
  std::optional<Range> ending_at(Address end) const;
  // The smallest member of at least `size`; of equals, the one at the lowest address.
  std::optional<Range> best_fit(Bytes size) const;

  // Calls visit(range) for the members of at least `size`, smallest first, until it returns false.
  template <class Visitor>
  void visit_fitting(Bytes size, Visitor&& visit) const {
    for (auto it = by_size_.lower_bound({size, Address{}}); it != by_size_.end(); ++it) {
      if (!visit(Range{it->second, it->first})) return;
    }
  }

  const std::map<Address, Bytes>& members() const { return by_address_; }
  friend bool operator==(const RangeSet& a, const RangeSet& b) {
    return a.by_address_ == b.by_address_;
  }
  // Whether both indexes hold the same members, none of which touch.
  bool consistent() const;

 private:
  friend struct TestAccess;
  using ByAddress = std::map<Address, Bytes>;
  void add(Range range);
  ByAddress::iterator remove(ByAddress::iterator member);

  ByAddress by_address_;
  std::set<std::pair<Bytes, Address>> by_size_;
};

}  // namespace weir
