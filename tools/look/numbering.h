// SPDX-License-Identifier: Apache-2.0
// Numbers for things of one kind, such as streams.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace weir {

// Numbers in order of first use, from 0.
template <class T>
class Numbering {
 public:
  Numbering() = default;
  explicit Numbering(const std::vector<T>& in_order) {
    for (const T& thing : in_order) of(thing);
  }

  // Of `thing`, which gets the next number if it has none.
  std::uint32_t of(const T& thing) {
    if (!things_.empty() && things_[last_] == thing) return last_;
    const auto [place, added] =
        numbers_.try_emplace(thing, static_cast<std::uint32_t>(things_.size()));
    if (added) things_.push_back(thing);
    return last_ = place->second;
  }
  // By number.
  const std::vector<T>& things() const { return things_; }

 private:
  std::map<T, std::uint32_t> numbers_;
  std::vector<T> things_;
  std::uint32_t last_ = 0;  // the latest answer
};

}  // namespace weir
