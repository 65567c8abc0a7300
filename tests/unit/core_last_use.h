// What the tests of freed ranges share: last uses, and what follows from one for a request.
#pragma once

#include <cstdint>
#include <initializer_list>

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

}  // namespace weir
