#include "core/base/range_set.h"

#include <algorithm>
#include <cassert>

namespace weir {

RangeSet& RangeSet::operator=(const RangeSet& other) {
  if (this == &other) return *this;
  *this = RangeSet{};
  Member* last = nullptr;
  for (const Range range : other) last = add_after(last, range);
  return *this;
}

RangeSet::Member* RangeSet::take_spare() {
  if (spare_ == nullptr) {
    chunks_.push_back(std::make_unique<Member[]>(kChunk));
    for (std::size_t i = kChunk; i-- > 0;) {
      chunks_.back()[i].next = spare_;
      spare_ = &chunks_.back()[i];
    }
  }
  return std::exchange(spare_, spare_->next);
}

// In order of size and address.
void RangeSet::list(Member* member) {
  const std::uint64_t list = list_of(member->range.size);
  const Range range = member->range;
  Member* previous = nullptr;
  Member* next = lists_[list];
  while (next != nullptr && (next->range.size < range.size ||
                             (next->range.size == range.size && next->range.begin < range.begin))) {
    previous = next;
    next = next->next;
  }
  member->previous = previous;
  member->next = next;
  if (next != nullptr) next->previous = member;
  (previous == nullptr ? lists_[list] : previous->next) = member;
  listed_[list / 64] |= std::uint64_t{1} << list % 64;
}

void RangeSet::unlist(Member* member) {
  if (member->next != nullptr) member->next->previous = member->previous;
  if (member->previous != nullptr) {
    member->previous->next = member->next;
    return;
  }
  const std::uint64_t list = list_of(member->range.size);
  lists_[list] = member->next;
  if (member->next == nullptr) listed_[list / 64] &= ~(std::uint64_t{1} << list % 64);
}

RangeSet::Member* RangeSet::add_after(Member* before, Range range) {
  Member* const member = take_spare();
  member->range = range;
  members_.insert_after(before, member);
  list(member);
  ++count_;
  return member;
}

void RangeSet::remove(Member* member) {
  members_.remove(member);
  unlist(member);
  member->next = spare_;
  spare_ = member;
  --count_;
}

void RangeSet::change(Member* member, Range to) {
  unlist(member);
  members_.move(member, to.begin, [&] { member->range = to; });
  list(member);
}

void RangeSet::insert(Range range) {
  assert(range.size > 0_B);
  Member* const before = members_.last_at(range.begin);
  Member* const after = before == nullptr ? members_.first() : before->after;
  assert(before == nullptr || before->range.end() <= range.begin);
  assert(after == nullptr || range.end() <= after->range.begin);
  const bool joins_before = before != nullptr && before->range.end() == range.begin;
  const bool joins_after = after != nullptr && range.end() == after->range.begin;
  if (joins_before) {
    const Bytes more = joins_after ? after->range.size : 0_B;
    if (joins_after) remove(after);
    change(before, {before->range.begin, before->range.size + range.size + more});
  } else if (joins_after) {
    change(after, {range.begin, range.size + after->range.size});
  } else {
    add_after(before, range);
  }
}

void RangeSet::erase(Range range) {
  Member* const member = members_.last_at(range.begin);
  assert(member != nullptr && member->range.contains(range));
  const Range whole = member->range;
  const Bytes left = range.begin - whole.begin, right = whole.end() - range.end();
  if (left > 0_B) {
    change(member, {whole.begin, left});
    if (right > 0_B) add_after(member, {range.end(), right});
  } else if (right > 0_B) {
    change(member, {range.end(), right});
  } else {
    remove(member);
  }
}

bool RangeSet::overlaps(Range range) const {
  if (range.size == 0_B) return false;
  const Member* const last = members_.last_at(range.end() - 1_B);
  return last != nullptr && range.begin < last->range.end();
}

std::optional<Range> RangeSet::containing(Address address) const {
  const Member* const member = members_.last_at(address);
  if (member == nullptr || member->range.end() <= address) return std::nullopt;
  return member->range;
}

std::optional<Range> RangeSet::ending_at(Address end) const {
  if (end == Address{}) return std::nullopt;
  const Member* const member = members_.last_at(end - 1_B);
  if (member == nullptr || member->range.end() != end) return std::nullopt;
  return member->range;
}

std::optional<Range> RangeSet::best_fit(Bytes size) const {
  for (std::uint64_t list = next_list(list_of(size)); list < kLists; list = next_list(list + 1)) {
    const Member* best = nullptr;
    for (const Member* at = lists_[list]; at != nullptr; at = at->next) {
      if (at->range.size < size) continue;
      if (best == nullptr || std::pair(at->range.size, at->range.begin) <
                                 std::pair(best->range.size, best->range.begin)) {
        best = at;
      }
    }
    if (best != nullptr) return best->range;
  }
  return std::nullopt;
}

bool operator==(const RangeSet& a, const RangeSet& b) {
  return a.count() == b.count() && std::equal(a.begin(), a.end(), b.begin());
}

bool RangeSet::consistent() const {
  if (!members_.consistent()) return false;
  std::size_t count = 0, listed = 0;
  for (const Member* at = members_.first(); at != nullptr; at = at->after, ++count) {
    if (at->range.size == 0_B) return false;
    if (at->before != nullptr && at->range.begin <= at->before->range.end()) return false;
  }
  for (std::uint64_t list = 0; list < kLists; ++list) {
    if ((listed_[list / 64] >> list % 64 & 1) != (lists_[list] != nullptr ? 1u : 0u)) return false;
    const Member* previous = nullptr;
    for (const Member* at = lists_[list]; at != nullptr; previous = at, at = at->next, ++listed) {
      if (at->previous != previous || list_of(at->range.size) != list || listed > count) {
        return false;
      }
      if (previous != nullptr && std::pair(previous->range.size, previous->range.begin) >
                                     std::pair(at->range.size, at->range.begin)) {
        return false;
      }
    }
  }
  return count == count_ && listed == count;
}

}  // namespace weir
