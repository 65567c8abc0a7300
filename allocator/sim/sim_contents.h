// SPDX-License-Identifier: Apache-2.0
// What bytes hold, as far as it can be told apart: for ranges, which write they are of, and which
// byte of that. So a copy can be compared with what was copied, and no byte is stored.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "weir/sim_device.h"

namespace weir::sim {

// Of positions from 0 on, or of addresses. What was never written holds write 0.
class Contents {
 public:
  // [begin, end) is of write `write` from its byte `first` on.
  void set(std::uint64_t begin, std::uint64_t end, std::uint64_t write, std::uint64_t first) {
    clear(begin, end);
    if (write != 0) ranges_[begin] = {end, write, first};
  }
  void clear(std::uint64_t begin, std::uint64_t end) {
    border(begin);
    border(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
  }
  // From now on [begin, begin + size) holds what `source` holds from `from` on.
  void take(std::uint64_t begin, Bytes size, const Contents& source, std::uint64_t from) {
    clear(begin, begin + size.count);
    source.visit(from, from + size.count,
                 [&](std::uint64_t b, std::uint64_t e, std::uint64_t w, std::uint64_t f) {
                   set(begin + (b - from), begin + (e - from), w, f);
                 });
  }
  // Calls visit(begin, end, write, first) for what was written of [begin, end), in order.
  template <class Visit>
  void visit(std::uint64_t begin, std::uint64_t end, Visit&& visit) const {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second.end > begin) --at;
    for (; at != ranges_.end() && at->first < end; ++at) {
      const std::uint64_t from = at->first < begin ? begin : at->first;
      const std::uint64_t to = at->second.end < end ? at->second.end : end;
      visit(from, to, at->second.write, at->second.first + (from - at->first));
    }
  }

 private:
  struct Written {
    std::uint64_t end = 0;
    std::uint64_t write = 0;
    std::uint64_t first = 0;
  };
  // A range that has `at` inside becomes two.
  void border(std::uint64_t at) {
    auto next = ranges_.lower_bound(at);
    if (next == ranges_.begin()) return;
    auto& [begin, range] = *std::prev(next);
    if (range.end <= at) return;
    ranges_.emplace_hint(next, at, Written{range.end, range.write, range.first + (at - begin)});
    range.end = at;
  }

  std::map<std::uint64_t, Written> ranges_;  // by begin; disjoint
};

}  // namespace weir::sim
