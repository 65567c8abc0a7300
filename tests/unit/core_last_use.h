// SPDX-License-Identifier: Apache-2.0
// What the tests of freed ranges share: last uses, what follows from one for a request, and how
// their models have fences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>

#include "core/time/freed_ranges.h"

namespace weir {

inline FenceSet set_of(std::initializer_list<Fence> fences) {
  FenceSet set;
  for (const Fence fence : fences) set.join(fence);
  return set;
}

// `by` freed the bytes at this point of its own timeline.
inline LastUse last_use(TimelineId by, std::uint64_t at, std::initializer_list<Fence> fences = {}) {
  return {by, {by, {at}}, set_of(fences), /*freed_at=*/at};
}

// Adds what a request of `taker`'s for the bytes waits for.
inline void collect(const LastUse& use, TimelineId taker, FenceSet& into) {
  if (use.by != taker) into.join(use.released);
  into.join(use.fences);
}

// A set of fences, as the models of the tests have it.
using Fences = std::map<std::uint32_t, std::uint64_t>;  // by timeline

inline Fences fences_of(const FenceSet& set) {
  Fences fences;
  for (const Fence fence : set) fences[fence.timeline.value] = fence.sequence.value;
  return fences;
}
inline void join(Fences& into, const Fences& other) {
  for (const auto& [timeline, sequence] : other) {
    into[timeline] = std::max(into[timeline], sequence);
  }
}

}  // namespace weir
