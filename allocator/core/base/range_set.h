// Disjoint ranges of addresses, merged where they touch; found by address or by size.
//
// By address there is a GranuleIndex of the members; by size they stand in lists, sixteen to a
// doubling, each in order. So a change costs some dozens of instructions, and walks at most the
// members that begin in one granule, and those of one list.
//
// Knows numbers only: not what backs them, nor what they are for. Not thread-safe.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/granule_index.h"
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
  struct Member {
    Range range;
    Member* before = nullptr;  // by address
    Member* after = nullptr;
    Member* previous = nullptr;  // in its list of sizes; `next` also of spare ones
    Member* next = nullptr;

    friend Address begin_of(const Member& member) { return member.range.begin; }
  };

 public:
  // Walks the members by address. Valid until the set changes.
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Range;
    using difference_type = std::ptrdiff_t;
    using pointer = const Range*;
    using reference = const Range&;

    Iterator() = default;
    reference operator*() const { return member_->range; }
    pointer operator->() const { return &member_->range; }
    Iterator& operator++() {
      member_ = member_->after;
      return *this;
    }
    Iterator operator++(int) { return std::exchange(*this, std::next(*this)); }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    friend class RangeSet;
    explicit Iterator(const Member* member) : member_(member) {}
    const Member* member_ = nullptr;
  };
  using value_type = Range;
  using const_iterator = Iterator;

  RangeSet() = default;
  // A copy has equal members; those of equal size may be visited in another order.
  RangeSet(const RangeSet& other) { *this = other; }
  RangeSet& operator=(const RangeSet& other);
  RangeSet(RangeSet&&) noexcept = default;
  RangeSet& operator=(RangeSet&&) noexcept = default;
  ~RangeSet() = default;

  // `range` is not empty and shares no address with the set.
  void insert(Range range);
  // The set contains the whole of `range`.
  void erase(Range range);

  bool empty() const { return count_ == 0; }
  std::size_t count() const { return count_; }  // of members
  bool contains(Range range) const {
    const Member* const member = members_.last_at(range.begin);
    return member != nullptr && member->range.contains(range);
  }
  // Is any address of `range` in the set?
  bool overlaps(Range range) const;
  // The member that `address` lies in.
  std::optional<Range> containing(Address address) const;
  // The member that ends exactly at `end`.
  std::optional<Range> ending_at(Address end) const;
  // The smallest member of at least `size`; of equals, the one at the lowest address.
  std::optional<Range> best_fit(Bytes size) const;

  // Calls visit(range) for the members of at least `size`, the smallest first and equals by
  // address, until it returns false. The set must not change meanwhile.
  template <class Visitor>
  void visit_fitting(Bytes size, Visitor&& visit) const {
    for (std::uint64_t list = next_list(list_of(size)); list < kLists; list = next_list(list + 1)) {
      for (const Member* at = lists_[list]; at != nullptr; at = at->next) {
        if (at->range.size >= size && !visit(at->range)) return;
      }
    }
  }

  Iterator begin() const { return Iterator(members_.first()); }
  Iterator end() const { return Iterator(nullptr); }
  friend bool operator==(const RangeSet& a, const RangeSet& b);
  // Whether all indexes hold the same members, none of which touch.
  bool consistent() const;

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kSteps = 16;  // lists for each doubling
  static constexpr std::uint64_t kLists = kSteps * 62;
  static constexpr std::size_t kChunk = 32;

  // Sizes 1 to 15: lists 1 to 15; then the four bits below the leading one choose a list.
  static std::uint64_t list_of(Bytes size) {
    if (size.count < kSteps) return size.count;
    const auto doublings = static_cast<std::uint64_t>(std::bit_width(size.count)) - 5;
    return doublings * kSteps + (size.count >> doublings);
  }
  // The first list from `list` on that is not empty; kLists: none is.
  std::uint64_t next_list(std::uint64_t list) const {
    for (std::uint64_t word = list / 64; word < listed_.size(); list = ++word * 64) {
      if (const std::uint64_t bits = listed_[word] >> list % 64; bits != 0) {
        return list + static_cast<std::uint64_t>(std::countr_zero(bits));
      }
    }
    return kLists;
  }

  Member* add_after(Member* before, Range range);
  void remove(Member* member);
  void change(Member* member, Range to);
  void list(Member* member);
  void unlist(Member* member);
  Member* take_spare();

  std::size_t count_ = 0;
  Member* spare_ = nullptr;
  GranuleIndex<Member> members_;
  std::array<std::uint64_t, (kLists + 63) / 64> listed_{};  // a bit for each list with a member
  std::array<Member*, kLists> lists_{};
  std::vector<std::unique_ptr<Member[]>> chunks_;
};

}  // namespace weir
