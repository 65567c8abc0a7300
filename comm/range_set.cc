#include "comm/range_set.h"

#include <cassert>
#include <iterator>

namespace weir {

void RangeSet::add(Range range) {
  by_address_.emplace(range.begin, range.size);
  by_size_.emplace(range.size, range.begin);
}

RangeSet::Members::iterator RangeSet::remove(Members::iterator member) {
  by_size_.erase({member->second, member->first});
  return by_address_.erase(member);
}

void RangeSet::insert(Range range) {
  assert(range.size > 0_B);
  auto after = by_address_.lower_bound(range.begin);
  if (after != by_address_.end()) {
    assert(range.end() <= after->first);
    if (range.end() == after->first) {
      range.size += after->second;
      after = remove(after);
    }
  }
  if (after != by_address_.begin()) {
    const auto before = std::prev(after);
    const Range whole{before->first, before->second};
    assert(whole.end() <= range.begin);
    if (whole.end() == range.begin) {
      range = {whole.begin, whole.size + range.size};
      remove(before);
    }
  }
  add(range);
}

void RangeSet::erase(Range range) {
  const auto after = by_address_.upper_bound(range.begin);
  assert(after != by_address_.begin());
  const auto member = std::prev(after);
  const Range whole{member->first, member->second};
  assert(whole.contains(range));
  remove(member);
  if (whole.begin < range.begin) add({whole.begin, range.begin - whole.begin});
  if (range.end() < whole.end()) add({range.end(), whole.end() - range.end()});
}

std::optional<Range> RangeSet::best_fit(Bytes size) const {
  const auto best = by_size_.lower_bound({size, Address{}});
  if (best == by_size_.end()) return std::nullopt;
  return Range{best->second, best->first};
}

std::vector<Range> RangeSet::members() const {
  std::vector<Range> members;
  for (const auto& [begin, size] : by_address_) members.push_back({begin, size});
  return members;
}

}  // namespace weir
