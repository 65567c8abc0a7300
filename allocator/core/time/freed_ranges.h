// SPDX-License-Identifier: Apache-2.0
// Who may still be using free bytes, range by range: the stream that freed them, and the streams
// that were named as users.
//
// A free chunk keeps the ranges of all the blocks that it was merged of, so that a request waits
// for the users of its own bytes only. (With one set of fences a chunk, recorded serving programs
// made three times as many waits.) Bytes that no range covers were never used.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/time/fence_set.h"
#include "weir/types.h"

namespace weir {

// What is known of the last use of some bytes.
struct LastUse {
  TimelineId by;               // of the stream that freed them
  Fence released;              // what another stream waits for: that stream's work until then
  FenceSet fences;             // uses by other streams
  std::uint64_t freed_at = 0;  // in requests
};

struct FreedRange {
  Address begin, end;
  LastUse use;
  FreedRange* next = nullptr;  // in its list, by address; or of the spare ones

  Range range() const { return {begin, end - begin}; }
};

// Records for the lists below. They stay where they are; what was taken from the system is kept.
class FreedRangePool {
 public:
  FreedRange* take();
  void give_back(FreedRange* range);

 private:
  static constexpr std::size_t kBatch = 32;
  std::vector<std::unique_ptr<FreedRange[]>> batches_;
  FreedRange* spare_ = nullptr;
};

// The ranges of one chunk, disjoint, by address. Owns them: clear() gives them back to the pool.
class FreedRanges {
 public:
  // Neighbours are joined beyond so many, so that a look at a chunk costs no more than this.
  static constexpr std::uint32_t kMost = 24;

  bool empty() const { return first_ == nullptr; }
  std::uint32_t size() const { return size_; }

  // Calls visit(const FreedRange&) for each that shares a byte with `range`, until it returns
  // false. Returns whether all were visited.
  template <class Visitor>
  bool visit(Range range, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (const FreedRange* at = first_; at != nullptr && at->begin < range.end(); at = at->next) {
      if (range.begin < at->end && !visit(*at)) return false;
    }
    return true;
  }

  // `range` lies behind every other; before every other.
  void append(FreedRangePool& pool, Range range, const LastUse& use);
  void prepend(FreedRangePool& pool, Range range, const LastUse& use);
  // Takes over the ranges of `later`, which lie behind these; `later` is empty afterwards.
  void append(FreedRangePool& pool, FreedRanges& later);
  // Moves what lies at `at` or behind it to `later`, which is empty.
  void split(FreedRangePool& pool, Address at, FreedRanges& later);
  // Forgets what lies before `at`; at `at` or behind it.
  void drop_before(FreedRangePool& pool, Address at);
  void drop_from(FreedRangePool& pool, Address at);
  // Each range that shares a byte with `range` carries `fences` too.
  void add_fences(Range range, const FenceSet& fences);
  void clear(FreedRangePool& pool);

  // A broken rule, named. `within`: where they may lie.
  std::optional<std::string> validate(Range within) const;

 private:
  friend struct TestAccess;
  static bool says_the_same(const LastUse& a, const LastUse& b);
  static void join(LastUse& into, const LastUse& other);
  void join_next(FreedRangePool& pool, FreedRange* range);
  void keep_to_most(FreedRangePool& pool);

  FreedRange* first_ = nullptr;
  FreedRange* last_ = nullptr;
  std::uint32_t size_ = 0;
};

}  // namespace weir
