// SPDX-License-Identifier: Apache-2.0
// A growing set of graph nodes. Source: linear probing with multiplicative hashing, Knuth, "The Art
// of Computer Programming" 3, section 6.4. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weir/device.h"

namespace weir {

class NodeSet {
 public:
  bool contains(GraphNode node) const {
    return !places_.empty() && places_[place_of(node)] == node.value;
  }

  // False: it is there already. A node is never 0.
  bool insert(GraphNode node) {
    if (2 * (size_ + 1) > places_.size()) grow();
    std::uint64_t& place = places_[place_of(node)];
    if (place == node.value) return false;
    place = node.value;
    ++size_;
    return true;
  }

  void clear() {
    places_.clear();
    size_ = 0;
  }

 private:
  // Where it is, or would be: at most half of the places are taken.
  std::size_t place_of(GraphNode node) const {
    const std::size_t mask = places_.size() - 1;
    std::size_t place = (node.value * 0x9E3779B97F4A7C15u) >> shift_;
    while (places_[place] != 0 && places_[place] != node.value) place = (place + 1) & mask;
    return place;
  }

  void grow() {
    std::vector<std::uint64_t> old(places_.empty() ? 64 : 2 * places_.size());
    old.swap(places_);
    shift_ = 64 - std::countr_zero(places_.size());
    for (const std::uint64_t node : old) {
      if (node != 0) places_[place_of({node})] = node;
    }
  }

  std::vector<std::uint64_t> places_;  // nodes, or 0; a power of two of them
  std::size_t size_ = 0;
  int shift_ = 64;
};

}  // namespace weir
