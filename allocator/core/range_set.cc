#include "core/range_set.h"

#include <cassert>
#include <iterator>

namespace weir {

void RangeSet::add(Range range) {
  by_address_.emplace(range.begin, range.size);
  by_size_.emplace(range.size, range.begin);
}

RangeSet::ByAddress::iterator RangeSet::remove(ByAddress::iterator member) {
  by_size_.erase({member->second, member->first});
  return by_address_.erase(member);
}

void RangeSet::insert(Range range) {
  assert(range.size > 0_B);
  auto next = by_address_.lower_bound(range.begin);
  assert(next == by_address_.end() || range.end() <= next->first);
  if (next != by_address_.end() && next->first == range.end()) {
    range.size += next->second;
    next = remove(next);
  }
  if (next != by_address_.begin()) {
    const auto previous = std::prev(next);
    assert(previous->first + previous->second <= range.begin);
    if (previous->first + previous->second == range.begin) {
      range = {previous->first, previous->second + range.size};
      remove(previous);
    }
  }
  add(range);
}

void RangeSet::erase(Range range) {
  const auto member = std::prev(by_address_.upper_bound(range.begin));
  const Range whole{member->first, member->second};
  assert(whole.contains(range));
  remove(member);
  if (whole.begin < range.begin) add({whole.begin, range.begin - whole.begin});
  if (range.end() < whole.end()) add({range.end(), whole.end() - range.end()});
}

void RangeSet::erase_any(Range range) {
  auto member = by_address_.upper_bound(range.begin);
  if (member != by_address_.begin()) --member;
  while (member != by_address_.end() && member->first < range.end()) {
    const Range whole{member->first, member->second};
    ++member;
    const Address begin = std::max(whole.begin, range.begin);
    const Address end = std::min(whole.end(), range.end());
    if (begin < end) erase({begin, end - begin});
  }
}

bool RangeSet::contains(Range range) const {
  const std::optional<Range> member = containing(range.begin);
  return member && member->contains(range);
}

bool RangeSet::overlaps(Range range) const {
  const auto after = by_address_.lower_bound(range.end());
  if (after == by_address_.begin()) return false;
  const auto last = std::prev(after);
  return range.begin < last->first + last->second;
}

std::optional<Range> RangeSet::containing(Address address) const {
  const auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return std::nullopt;
  const auto member = std::prev(after);
  if (member->first + member->second <= address) return std::nullopt;
  return Range{member->first, member->second};
}

std::optional<Range> RangeSet::ending_at(Address end) const {
  const auto after = by_address_.lower_bound(end);
  if (after == by_address_.begin()) return std::nullopt;
  const auto member = std::prev(after);
  if (member->first + member->second != end) return std::nullopt;
  return Range{member->first, member->second};
}

std::optional<Range> RangeSet::best_fit(Bytes size) const {
  const auto member = by_size_.lower_bound({size, Address{}});
  if (member == by_size_.end()) return std::nullopt;
  return Range{member->second, member->first};
}

bool RangeSet::consistent() const {
  if (by_address_.size() != by_size_.size()) return false;
  std::optional<Address> end;
  for (const auto& [begin, size] : by_address_) {
    if (size == 0_B || (end && begin <= *end)) return false;
    if (!by_size_.contains({size, begin})) return false;
    end = begin + size;
  }
  return true;
}

}  // namespace weir
