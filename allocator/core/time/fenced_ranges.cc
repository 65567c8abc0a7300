// SPDX-License-Identifier: Apache-2.0
#include "core/time/fenced_ranges.h"

namespace weir {

bool FencedRanges::implies(const Fenced& later, const Fenced& earlier) {
  return earlier.fence.timeline == later.fence.timeline &&
         earlier.fence.sequence <= later.fence.sequence && later.begin <= earlier.begin &&
         earlier.end <= later.end;
}

void FencedRanges::add(std::uint64_t begin, std::uint64_t end, Fence fence) {
  const Fenced added{begin, end, fence};
  std::erase_if(ranges_, [&](const Fenced& old) { return implies(added, old); });
  ranges_.push_back(added);
}

void FencedRanges::forget(std::uint64_t begin, std::uint64_t end) {
  std::erase_if(ranges_,
                [&](const Fenced& fenced) { return begin <= fenced.begin && fenced.end <= end; });
}

std::optional<std::string> FencedRanges::validate(std::uint64_t limit) const {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Fenced& mine = ranges_[i];
    if (mine.begin >= mine.end) return "a fenced range is empty";
    if (mine.end > limit) return "a fenced range ends beyond its bytes";
    for (std::size_t earlier = 0; earlier < i; ++earlier) {
      if (implies(mine, ranges_[earlier])) return "a fenced range is kept that a later one implies";
    }
  }
  return std::nullopt;
}

}  // namespace weir
