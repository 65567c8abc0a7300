// SPDX-License-Identifier: Apache-2.0
// A quantity that rises and falls at stamps, and its value at moments and over spans of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/property/history.h"

namespace weir::test {

// All calls of move() come before settle(), and all others after it.
class Levels {
 public:
  void move(Stamp at, std::int64_t by) {
    if (at != kNever) steps_.emplace_back(at, by);
  }

  void settle() {
    std::sort(steps_.begin(), steps_.end());
    std::int64_t level = 0;
    for (auto& [stamp, value] : steps_) value = level += value;
  }

  std::int64_t at(Stamp moment) const {
    const auto after = next(moment);
    return after == steps_.begin() ? 0 : std::prev(after)->second;
  }

  // Of the moments `first` .. `last`.
  std::int64_t most(Stamp first, Stamp last) const {
    std::int64_t most = at(first);
    for (auto step = next(first); step != steps_.end() && step->first <= last; ++step) {
      // Where several steps have one stamp, only what the last of them leaves is a level.
      if (std::next(step) != steps_.end() && std::next(step)->first == step->first) continue;
      most = std::max(most, step->second);
    }
    return most;
  }

  // The moments after `first`, up to `last`, at which it changes.
  void add_changes(Stamp first, Stamp last, std::vector<Stamp>& moments) const {
    for (auto step = next(first); step != steps_.end() && step->first <= last; ++step) {
      moments.push_back(step->first);
    }
  }

 private:
  using Steps = std::vector<std::pair<Stamp, std::int64_t>>;  // by stamp, with the level from there
  Steps::const_iterator next(Stamp moment) const {
    return std::upper_bound(
        steps_.begin(), steps_.end(), moment,
        [](Stamp stamp, const Steps::value_type& step) { return stamp < step.first; });
  }
  Steps steps_;
};

}  // namespace weir::test
