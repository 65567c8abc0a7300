// SPDX-License-Identifier: Apache-2.0
// Ranges of bytes that somebody may still be using, and until when. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/thread_annotations.h"
#include "core/time/fence_set.h"

namespace weir {

// Positions are what the owner says they are: offsets in a page, or addresses. Keeps its memory, so
// that ranges which come and go ask for none. A look at it costs time in proportion to its size,
// and nothing where it is empty.
class FencedRanges {
 public:
  bool empty() const { return ranges_.empty(); }
  std::size_t size() const { return ranges_.size(); }

  // The bytes from `begin` to `end`, one at least, wait for `fences`.
  void add(std::uint64_t begin, std::uint64_t end, const FenceSet& fences) {
    for (const Fence fence : fences) add(begin, end, fence);
  }

  // Joins to `into` every fence on a byte between `begin` and `end`.
  void collect(std::uint64_t begin, std::uint64_t end, FenceSet& into) const {
    for (const Fenced& fenced : ranges_) {
      if (fenced.begin < end && begin < fenced.end) into.join(fenced.fence);
    }
  }

  // Forgets the fences that `done(fence)` says are of no more interest.
  template <class Done>
  void forget_if(Done&& done) WEIR_NO_THREAD_ANALYSIS {
    std::erase_if(ranges_,
                  [&](const Fenced& fenced) WEIR_NO_THREAD_ANALYSIS { return done(fenced.fence); });
  }
  // Forgets what lies wholly between `begin` and `end`.
  void forget(std::uint64_t begin, std::uint64_t end);
  void clear() { ranges_.clear(); }

  // A broken invariant, named; nothing where all is well. Positions are below `limit`.
  std::optional<std::string> validate(std::uint64_t limit) const;

 private:
  friend struct TestAccess;
  struct Fenced {
    std::uint64_t begin, end;
    Fence fence;
  };
  void add(std::uint64_t begin, std::uint64_t end, Fence fence);
  // Does `later` say all that `earlier` says? A later fence of the same stream implies the earlier.
  static bool implies(const Fenced& later, const Fenced& earlier);

  std::vector<Fenced> ranges_;
};

}  // namespace weir
