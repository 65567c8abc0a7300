// SPDX-License-Identifier: Apache-2.0
// What a timeline has waited for: of each other timeline it heard of, the latest point that it is
// past. Source: Mattern 1989, "Virtual Time and Global States".
//
// A clock knows of kMost others at most, so that a wait costs no more with more streams. What it
// forgets, the timeline waits for once more. Points that are complete, as is_done(Fence) says, are
// of no interest to anybody: they go first where a full clock is raised.
//
// In order of timeline. Keeps its capacity, so a clock that is copied over and over into the same
// place asks for no memory. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "weir/types.h"

namespace weir {

class VectorClock {
 public:
  static constexpr std::size_t kMost = 16;

  // Zero for a timeline it does not know of.
  Sequence at(TimelineId timeline) const {
    const std::size_t i = place(timeline);
    return has(i, timeline) ? entries_[i].sequence : Sequence{0};
  }

  // Past `point` too. A full clock forgets a neighbour for it.
  template <class IsDone>
  void raise(Fence point, IsDone&& is_done) {
    std::size_t i = place(point.timeline);
    if (has(i, point.timeline)) {
      entries_[i].sequence = std::max(entries_[i].sequence, point.sequence);
      return;
    }
    if (is_done(point)) return;
    if (entries_.size() == kMost) {
      std::erase_if(entries_, is_done);
      i = place(point.timeline);
    }
    put(i, point);
  }

  // Past all that `other` is past. A full clock forgets neighbours for it.
  template <class IsDone>
  void join(const VectorClock& other, IsDone&& is_done) {
    std::size_t i = 0;
    for (const Fence point : other.entries_) {
      while (i < entries_.size() && entries_[i].timeline < point.timeline) ++i;
      if (has(i, point.timeline)) {
        entries_[i].sequence = std::max(entries_[i].sequence, point.sequence);
      } else if (!is_done(point)) {
        put(i, point);
      }
    }
  }

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  std::size_t size() const { return entries_.size(); }

 private:
  friend struct TestAccess;

  // Where `timeline` is, or would have to be put.
  std::size_t place(TimelineId timeline) const {
    const auto place = std::lower_bound(
        entries_.begin(), entries_.end(), timeline,
        [](const Fence& entry, TimelineId wanted) { return entry.timeline < wanted; });
    return static_cast<std::size_t>(place - entries_.begin());
  }
  bool has(std::size_t i, TimelineId timeline) const {
    return i < entries_.size() && entries_[i].timeline == timeline;
  }

  // `i`: place(point.timeline).
  void put(std::size_t i, Fence point) {
    if (entries_.size() < kMost) {
      entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(i), point);
    } else {
      entries_[std::min(i, kMost - 1)] = point;
    }
  }

  std::vector<Fence> entries_;
};

}  // namespace weir
