// SPDX-License-Identifier: Apache-2.0
// Columns of numbers, written small.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace weir {

// Numbers one after the other, as varints.
class HtmlColumn {
 public:
  // The page's numbers are doubles: what is larger is taken for the largest.
  static constexpr std::uint64_t kMost = (std::uint64_t{1} << 53) - 1;

  explicit HtmlColumn(std::string name) : name_(std::move(name)) {}

  void add(std::uint64_t number) {
    number = std::min(number, kMost);
    for (; number >= 0x80; number >>= 7) bytes_.push_back(static_cast<char>(number | 0x80));
    bytes_.push_back(static_cast<char>(number));
  }
  // Small numbers of either sign stay small: 0, -1, 1, -2 are written as 0, 1, 2, 3.
  void add_signed(std::int64_t number) {
    constexpr auto kHalf = static_cast<std::int64_t>(kMost / 2);
    number = std::clamp(number, -kHalf, kHalf);
    add(number < 0 ? (static_cast<std::uint64_t>(-(number + 1)) << 1) | 1
                   : static_cast<std::uint64_t>(number) << 1);
  }
  // How far `number` is from the one before, which was 0 at first.
  void add_difference(std::uint64_t number) {
    number = std::min(number, kMost / 2);
    add_signed(static_cast<std::int64_t>(number) - static_cast<std::int64_t>(last_));
    last_ = number;
  }

  const std::string& name() const { return name_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string name_, bytes_;
  std::uint64_t last_ = 0;
};

}  // namespace weir
