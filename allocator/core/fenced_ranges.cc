#include "core/fenced_ranges.h"

namespace weir {

void FencedRanges::add(std::uint64_t begin, std::uint64_t end, const FenceSet& fences) {
  for (const Fence fence : fences) {
    // A later fence of the same stream over the same bytes implies the earlier ones.
    std::erase_if(ranges_, [&](const Fenced& old) {
      return old.fence.timeline == fence.timeline && old.fence.sequence <= fence.sequence &&
             begin <= old.begin && old.end <= end;
    });
    ranges_.push_back({begin, end, fence});
  }
}

void FencedRanges::collect(std::uint64_t begin, std::uint64_t end, FenceSet& into) const {
  for (const Fenced& fenced : ranges_) {
    if (fenced.begin < end && begin < fenced.end) into.join(fenced.fence);
  }
}

void FencedRanges::forget(std::uint64_t begin, std::uint64_t end) {
  std::erase_if(ranges_,
                [&](const Fenced& fenced) { return begin <= fenced.begin && fenced.end <= end; });
}

}  // namespace weir
