// SPDX-License-Identifier: Apache-2.0
// The colours of blocks in pictures: those that a page of the same recording starts with
// (page/colours.js).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "look/block_lifetimes.h"
#include "weir/recording.h"

namespace weir {

// By stream where several streams have blocks; else by stack where stacks were recorded; else by
// size. The recording and the lifetimes must outlive it.
class BlockColours {
 public:
  // `peak`: numbers of blocks. The stacks with the most bytes in them have colours of their own.
  BlockColours(const Recording& recording, const BlockLifetimes& lifetimes,
               const std::vector<std::uint32_t>& peak);

  // Index of a block's class: 0 to classes().size() - 1.
  std::size_t class_of(std::uint32_t block) const;
  // Names and colours ("#0072b2"); a legend.
  const std::vector<std::pair<std::string, std::string>>& classes() const { return classes_; }
  const std::string& colour_of(std::uint32_t block) const {
    return classes_[class_of(block)].second;
  }
  bool are_by_size() const { return by_ == By::size; }
  // Neighbours of one colour differ a little, so that they can be told apart.
  double opacity_of(std::uint32_t block) const;

 private:
  enum class By : std::uint8_t { stream, stack, size };
  void add_streams();
  void add_stacks(const std::vector<std::uint32_t>& peak);
  void add_sizes();

  const Recording& recording_;
  const BlockLifetimes& lifetimes_;
  By by_ = By::stream;
  std::vector<std::uint64_t> streams_;         // that have blocks, by id
  std::vector<std::uint32_t> class_of_stack_;  // by Event::stack
  std::vector<std::pair<std::string, std::string>> classes_;
};

}  // namespace weir
