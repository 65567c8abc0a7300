// SPDX-License-Identifier: Apache-2.0
// What a timeline has waited for: the latest sequence of each other timeline that it is past.
// Source: Mattern 1989, "Virtual Time and Global States".
//
// Sparse, and in order of timeline: as long as the number of others it heard of, not of all there
// are. Keeps its capacity, so a clock that is copied over and over into the same place asks for no
// memory. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/time/fence_set.h"

namespace weir {

class VectorClock {
 public:
  // Past the other's event at `sequence`, and past all that the other was past by then: that is its
  // clock of number `moment`, which so needs no second look.
  struct Entry {
    TimelineId timeline;
    std::uint32_t moment = 0;
    Sequence sequence;
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  // Null for a timeline it never heard of. Good until the clock is raised or joined.
  Entry* find(TimelineId timeline) {
    const std::size_t i = place(timeline);
    return has(i, timeline) ? &entries_[i] : nullptr;
  }
  // Zero for a timeline it never heard of.
  Sequence at(TimelineId timeline) const {
    const std::size_t i = place(timeline);
    return has(i, timeline) ? entries_[i].sequence : Sequence{0};
  }

  // Past `entry` too. What `is_done(Fence)` says of no more interest is forgotten when the clock
  // would get longer.
  template <class IsDone>
  void raise(Entry entry, IsDone&& is_done) {
    const std::size_t i = place(entry.timeline);
    if (has(i, entry.timeline)) {
      if (entries_[i].sequence < entry.sequence) entries_[i] = entry;
      return;
    }
    const auto done = [&](const Entry& old) { return is_done(Fence{old.timeline, old.sequence}); };
    if (done(entry)) return;
    std::erase_if(entries_, done);
    entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(place(entry.timeline)), entry);
  }

  // Past all that `other` is past, in one pass; what is_done() says is forgotten as by raise().
  // `scratch`: any vector, which keeps a capacity for the next join.
  template <class IsDone>
  void join(const VectorClock& other, IsDone&& is_done, std::vector<Entry>& scratch) {
    const auto done = [&](const Entry& old) { return is_done(Fence{old.timeline, old.sequence}); };
    bool longer = false;
    std::size_t i = 0;
    for (const Entry& theirs : other.entries_) {
      while (i < entries_.size() && entries_[i].timeline < theirs.timeline) ++i;
      if (!has(i, theirs.timeline)) {
        longer = longer || !done(theirs);
      } else if (entries_[i].sequence < theirs.sequence) {
        entries_[i] = theirs;
      }
    }
    if (!longer) return;
    scratch.clear();
    const auto keep = [&](const Entry& entry) {
      if (!done(entry)) scratch.push_back(entry);
    };
    i = 0;
    for (const Entry& theirs : other.entries_) {
      while (i < entries_.size() && entries_[i].timeline < theirs.timeline) keep(entries_[i++]);
      if (!has(i, theirs.timeline)) keep(theirs);
    }
    while (i < entries_.size()) keep(entries_[i++]);
    entries_.swap(scratch);
  }

  // Forgets all, and gives back its memory.
  void reset() { std::vector<Entry>().swap(entries_); }

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  std::size_t size() const { return entries_.size(); }
  bool in_order() const {
    return std::adjacent_find(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
             return a.timeline >= b.timeline;
           }) == entries_.end();
  }

 private:
  friend struct TestAccess;

  // Where `timeline` is, or would have to be put.
  std::size_t place(TimelineId timeline) const {
    std::size_t i = 0;
    for (std::size_t rest = entries_.size(); rest > 0;) {
      const std::size_t half = rest / 2;
      const bool beyond = entries_[i + half].timeline < timeline;
      i += beyond ? half + 1 : 0;
      rest = beyond ? rest - half - 1 : half;
    }
    return i;
  }
  bool has(std::size_t i, TimelineId timeline) const {
    return i < entries_.size() && entries_[i].timeline == timeline;
  }

  std::vector<Entry> entries_;
};

}  // namespace weir
