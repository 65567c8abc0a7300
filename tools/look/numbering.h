// SPDX-License-Identifier: Apache-2.0
// Numbers for things of one kind, such as streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace weir {

// Numbers in order of first use, from 0. Each thing is kept once.
template <class T>
class Numbering {
 public:
  Numbering() = default;
  explicit Numbering(const std::vector<T>& in_order) {
    for (const T& thing : in_order) of(thing);
  }
  Numbering(Numbering&&) = default;
  Numbering& operator=(Numbering&&) = default;

  // Of `thing`, which gets the next number if it has none.
  std::uint32_t of(const T& thing) {
    if (last_ == nullptr || last_->first != thing) {
      last_ = &*numbers_.try_emplace(thing, static_cast<std::uint32_t>(numbers_.size())).first;
    }
    return last_->second;
  }
  // The same, without a use; kNone: it has none.
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::uint32_t known(const T& thing) const {
    const auto found = numbers_.find(thing);
    return found == numbers_.end() ? kNone : found->second;
  }
  std::size_t size() const { return numbers_.size(); }
  // By number. Then none has one.
  std::vector<T> take() {
    std::vector<T> things(numbers_.size());
    for (last_ = nullptr; !numbers_.empty();) {
      auto first = numbers_.extract(numbers_.begin());
      things[first.mapped()] = std::move(first.key());
    }
    return things;
  }

 private:
  std::map<T, std::uint32_t> numbers_;
  const std::pair<const T, std::uint32_t>* last_ = nullptr;  // the latest answer
};

}  // namespace weir
