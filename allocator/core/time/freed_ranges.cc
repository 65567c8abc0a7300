// SPDX-License-Identifier: Apache-2.0
#include "core/time/freed_ranges.h"

#include <algorithm>
#include <utility>

namespace weir {

FreedRange* FreedRangePool::take() {
  if (spare_ == nullptr) {
    batches_.push_back(std::make_unique<FreedRange[]>(kBatch));
    for (std::size_t i = 0; i < kBatch; ++i) give_back(&batches_.back()[i]);
  }
  FreedRange* const range = spare_;
  spare_ = range->next;
  range->next = nullptr;
  return range;
}

void FreedRangePool::give_back(FreedRange* range) {
  range->use.fences.clear();
  range->next = spare_;
  spare_ = range;
}

// The requests' count is left out: the later one stands for both.
bool FreedRanges::says_the_same(const LastUse& a, const LastUse& b) {
  return a.by == b.by && a.released == b.released && a.fences == b.fences;
}

// Whoever waits for the joined use waits for both.
void FreedRanges::join(LastUse& into, const LastUse& other) {
  into.fences.join(other.fences);
  if (into.by != other.by) {
    into.fences.join(other.released);
  } else if (into.released.timeline == other.released.timeline) {
    into.released.sequence = std::max(into.released.sequence, other.released.sequence);
  } else {
    into.fences.join(other.released);
  }
  into.freed_at = std::max(into.freed_at, other.freed_at);
}

// Joins `range` and the next one, and what lies between.
void FreedRanges::join_next(FreedRangePool& pool, FreedRange* range) {
  FreedRange* const next = range->next;
  join(range->use, next->use);
  range->end = next->end;
  range->next = next->next;
  if (last_ == next) last_ = range;
  --size_;
  pool.give_back(next);
}

// Of neighbours, those of one stream come first, then those that cover the fewest bytes together.
void FreedRanges::keep_to_most(FreedRangePool& pool) {
  while (size_ > kMost) {
    FreedRange* best = first_;
    const auto cost = [](const FreedRange* at) {
      return std::pair(at->use.by != at->next->use.by, at->next->end - at->begin);
    };
    for (FreedRange* at = first_->next; at->next != nullptr; at = at->next) {
      if (cost(at) < cost(best)) best = at;
    }
    join_next(pool, best);
  }
}

void FreedRanges::append(FreedRangePool& pool, Range range, const LastUse& use) {
  FreedRange* const added = pool.take();
  added->begin = range.begin;
  added->end = range.end();
  added->use = use;
  if (empty()) {
    first_ = last_ = added;
    size_ = 1;
    return;
  }
  FreedRanges one;
  one.first_ = one.last_ = added;
  one.size_ = 1;
  append(pool, one);
}

void FreedRanges::prepend(FreedRangePool& pool, Range range, const LastUse& use) {
  if (first_ != nullptr && first_->begin == range.end() && says_the_same(use, first_->use)) {
    first_->begin = range.begin;
    first_->use.freed_at = std::max(first_->use.freed_at, use.freed_at);
    return;
  }
  FreedRange* const added = pool.take();
  added->begin = range.begin;
  added->end = range.end();
  added->use = use;
  added->next = first_;
  first_ = added;
  if (last_ == nullptr) last_ = added;
  ++size_;
  keep_to_most(pool);
}

void FreedRanges::append(FreedRangePool& pool, FreedRanges& later) {
  if (later.empty()) return;
  FreedRange* const before = last_;
  (before == nullptr ? first_ : before->next) = later.first_;
  last_ = later.last_;
  size_ += later.size_;
  later = FreedRanges{};
  if (before == nullptr) return;
  if (before->end == before->next->begin && says_the_same(before->use, before->next->use)) {
    join_next(pool, before);
  }
  keep_to_most(pool);
}

void FreedRanges::split(FreedRangePool& pool, Address at, FreedRanges& later) {
  FreedRange* before = nullptr;
  std::uint32_t count = 0;
  for (FreedRange* range = first_; range != nullptr && range->begin < at; range = range->next) {
    before = range;
    ++count;
  }
  FreedRange* behind = before == nullptr ? first_ : before->next;
  const std::uint32_t moved = size_ - count;
  later.size_ = moved;
  later.last_ = moved == 0 ? nullptr : last_;
  if (before != nullptr && before->end > at) {
    FreedRange* const half = pool.take();
    half->begin = at;
    half->end = before->end;
    half->use = before->use;
    half->next = behind;
    before->end = at;
    behind = half;
    ++later.size_;
    if (later.last_ == nullptr) later.last_ = half;
  }
  later.first_ = behind;
  (before == nullptr ? first_ : before->next) = nullptr;
  last_ = before;
  size_ = count;
}

void FreedRanges::drop_before(FreedRangePool& pool, Address at) {
  while (first_ != nullptr && first_->end <= at) {
    pool.give_back(std::exchange(first_, first_->next));
    --size_;
  }
  if (first_ == nullptr) {
    last_ = nullptr;
  } else if (first_->begin < at) {
    first_->begin = at;
  }
}

void FreedRanges::drop_from(FreedRangePool& pool, Address at) {
  FreedRange* before = nullptr;
  FreedRange* range = first_;
  std::uint32_t count = 0;
  for (; range != nullptr && range->begin < at; range = range->next) {
    before = range;
    ++count;
  }
  while (range != nullptr) pool.give_back(std::exchange(range, range->next));
  (before == nullptr ? first_ : before->next) = nullptr;
  if (before != nullptr && before->end > at) before->end = at;
  last_ = before;
  size_ = count;
}

void FreedRanges::add_fences(Range range, const FenceSet& fences) {
  for (FreedRange* at = first_; at != nullptr; at = at->next) {
    if (at->begin < range.end() && range.begin < at->end) at->use.fences.join(fences);
  }
}

void FreedRanges::clear(FreedRangePool& pool) {
  while (first_ != nullptr) pool.give_back(std::exchange(first_, first_->next));
  last_ = nullptr;
  size_ = 0;
}

std::optional<std::string> FreedRanges::validate(Range within) const {
  std::uint32_t count = 0;
  const FreedRange* before = nullptr;
  for (const FreedRange* at = first_; at != nullptr; before = at, at = at->next) {
    if (++count > size_) return "more freed ranges than are counted";
    if (at->begin >= at->end) return "a freed range is empty";
    if (!within.contains(at->range())) return "a freed range lies beyond its chunk";
    if (before != nullptr && before->end > at->begin) return "freed ranges overlap";
  }
  if (count != size_) return "fewer freed ranges than are counted";
  if (last_ != before) return "the last freed range is another one";
  if (size_ > kMost + 1) return "too many freed ranges";
  return std::nullopt;
}

}  // namespace weir
