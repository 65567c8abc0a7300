// Ranges of bytes that somebody may still be using, and until when. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/timelines.h"

namespace weir {

// Positions are what the owner says they are: offsets in a page, or addresses.
class FencedRanges {
 public:
  bool empty() const { return ranges_.empty(); }
  std::size_t size() const { return ranges_.size(); }

  // The bytes from `begin` to `end` wait for `fences`.
  void add(std::uint64_t begin, std::uint64_t end, const FenceSet& fences);

  // Joins to `into` every fence on a byte between `begin` and `end`.
  void collect(std::uint64_t begin, std::uint64_t end, FenceSet& into) const;

  // Forgets the fences that `done(fence)` says are of no more interest.
  template <class Done>
  void forget_if(Done&& done) WEIR_NO_THREAD_ANALYSIS {
    std::erase_if(ranges_,
                  [&](const Fenced& fenced) WEIR_NO_THREAD_ANALYSIS { return done(fenced.fence); });
  }
  // Forgets what lies wholly between `begin` and `end`.
  void forget(std::uint64_t begin, std::uint64_t end);
  void clear() { ranges_.clear(); }

 private:
  struct Fenced {
    std::uint64_t begin, end;
    Fence fence;
  };
  std::vector<Fenced> ranges_;
};

}  // namespace weir
