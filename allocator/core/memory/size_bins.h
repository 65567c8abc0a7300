// SPDX-License-Identifier: Apache-2.0
// Lists of things by size: 32 for each doubling, the last added first. One that fits is found in a
// few steps, however many there are. Owns none; not thread-safe. Source: Masmano et al. 2004,
// "TLSF: a New Dynamic Memory Allocator for Real-Time Systems".
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/thread_annotations.h"
#include "weir/types.h"

namespace weir {

// Node has the members `previous` and `next`, pointers that belong to the bins while it is listed,
// and size_in_bins(), which stays as it is meanwhile. `kBins`: 32 for sizes below 16 KiB, and for
// each doubling above.
template <class Node, std::uint64_t kBins = std::uint64_t{32} * 37>
class SizeBins {
 public:
  void add(Node* node) {
    const std::uint64_t bin = bin_of(node->size_in_bins());
    node->previous = nullptr;
    node->next = first_[bin];
    if (node->next != nullptr) node->next->previous = node;
    first_[bin] = node;
    filled_[bin / 64] |= std::uint64_t{1} << bin % 64;
    ++count_;
  }
  void remove(Node* node) {
    if (node->next != nullptr) node->next->previous = node->previous;
    --count_;
    if (node->previous != nullptr) {
      node->previous->next = node->next;
      return;
    }
    const std::uint64_t bin = bin_of(node->size_in_bins());
    first_[bin] = node->next;
    if (node->next == nullptr) filled_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
  }

  // Calls visit(Node&) for those of at least `size`, smaller lists first, until it returns false.
  // (The first list has smaller ones, too: it is left after kMostSmaller of them.)
  template <class Visitor>
  void visit_fitting(Bytes size, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (std::uint64_t bin = next_bin(bin_of(size)); bin < kBins; bin = next_bin(bin + 1)) {
      int smaller = 0;
      for (Node* at = first_[bin]; at != nullptr && smaller < kMostSmaller; at = at->next) {
        if (at->size_in_bins() < size) {
          ++smaller;
        } else if (!visit(*at)) {
          return;
        }
      }
    }
  }
  // The same for all in lists of sizes below `below`, larger lists first.
  template <class Visitor>
  void visit_down(Visitor&& visit, Bytes below = kMost) const WEIR_NO_THREAD_ANALYSIS {
    for (std::uint64_t bin = previous_bin(bin_of(below)); bin < kBins; bin = previous_bin(bin)) {
      for (Node* at = first_[bin]; at != nullptr; at = at->next) {
        if (!visit(*at)) return;
      }
    }
  }
  std::size_t count() const { return count_; }

  // Broken rules, named.
  std::vector<std::string> validate(const std::string& name) const {
    std::vector<std::string> broken;
    std::size_t count = 0;
    for (std::uint64_t bin = 0; bin < kBins; ++bin) {
      const bool has = (filled_[bin / 64] >> bin % 64 & 1) != 0;
      if (has != (first_[bin] != nullptr)) broken.push_back(name + ": a bit is wrong");
      const Node* before = nullptr;
      for (const Node* at = first_[bin]; at != nullptr; before = at, at = at->next) {
        if (++count > count_) return broken.push_back(name + ": more than counted"), broken;
        if (bin_of(at->size_in_bins()) != bin) broken.push_back(name + ": one of another size");
        if (at->previous != before) broken.push_back(name + ": a list is linked wrong");
      }
    }
    if (count != count_) broken.push_back(name + ": fewer than counted");
    return broken;
  }

 private:
  friend struct TestAccess;
  static constexpr int kMostSmaller = 32;
  static constexpr std::uint64_t kSteps = 32;
  static constexpr Bytes kMost = kGrain * (kSteps << (kBins / kSteps - 1));  // no size is as large

  static std::uint64_t bin_of(Bytes size) {
    const std::uint64_t grains = size / kGrain;
    if (grains < kSteps) return grains;
    const auto doublings = static_cast<std::uint64_t>(std::bit_width(grains)) - 6;
    return doublings * kSteps + (grains >> doublings);
  }
  // The first bin from `bin` on that is not empty; kBins: none is.
  std::uint64_t next_bin(std::uint64_t bin) const {
    for (std::uint64_t word = bin / 64; word < filled_.size(); bin = ++word * 64) {
      if (const std::uint64_t bits = filled_[word] >> bin % 64; bits != 0) {
        return bin + static_cast<std::uint64_t>(std::countr_zero(bits));
      }
    }
    return kBins;
  }
  // The last bin before `bin` that is not empty; kBins: none is.
  std::uint64_t previous_bin(std::uint64_t bin) const {
    for (std::uint64_t word = (bin + 63) / 64; word-- > 0;) {
      std::uint64_t bits = filled_[word];
      if (bin < (word + 1) * 64) bits &= (std::uint64_t{1} << bin % 64) - 1;
      if (bits != 0) return word * 64 + 63 - static_cast<std::uint64_t>(std::countl_zero(bits));
    }
    return kBins;
  }

  std::size_t count_ = 0;
  std::array<std::uint64_t, (kBins + 63) / 64> filled_{};  // a bit for each list that is not empty
  std::array<Node*, kBins> first_{};
};

}  // namespace weir
