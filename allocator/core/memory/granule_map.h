// SPDX-License-Identifier: Apache-2.0
// Which page lies under an address: a table of three levels, by granules of 2 MiB. A look-up is
// three loads, whatever is mapped. Not thread-safe.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/range.h"
#include "weir/types.h"

namespace weir {

struct Page;

class GranuleMap {
 public:
  static constexpr Bytes kGranule = 2_MiB;
  // Addresses end here.
  static constexpr Address kEnd{std::uint64_t{1} << 49};

  struct Entry {
    Page* page = nullptr;  // null: nothing is mapped
  };

  // `mapped` is made of whole granules, of which none is set (are all set, for clear()).
  void set(Range mapped, Page& page) {
    for (Bytes offset; offset < mapped.size; offset += kGranule) {
      slot(mapped.begin + offset) = {&page};
    }
  }
  void clear(Range mapped) {
    for (Bytes offset; offset < mapped.size; offset += kGranule) slot(mapped.begin + offset) = {};
  }

  // What is mapped at `at`: something is.
  const Entry& at(Address at) const {
    return (*(*top_[top_index(at) - first_top_])[middle_index(at)])[leaf_index(at)];
  }
  // The same, or null.
  const Entry* find(Address at) const {
    const std::uint64_t top = top_index(at) - first_top_;
    if (top >= top_.size() || !top_[top]) return nullptr;
    const std::unique_ptr<Leaf>& leaf = (*top_[top])[middle_index(at)];
    return leaf && (*leaf)[leaf_index(at)].page != nullptr ? &(*leaf)[leaf_index(at)] : nullptr;
  }

  // Calls visit(address, entry) for each granule that is mapped, in order.
  template <class Visitor>
  void visit(Visitor&& visit) const {
    Address at{first_top_ * (kLeafSpan * kMiddles).count};
    for (const std::unique_ptr<Middle>& middle : top_) {
      if (!middle) {
        at = at + kLeafSpan * kMiddles;
        continue;
      }
      for (const std::unique_ptr<Leaf>& leaf : *middle) {
        if (!leaf) {
          at = at + kLeafSpan;
          continue;
        }
        for (const Entry& entry : *leaf) {
          if (entry.page != nullptr) visit(at, entry);
          at = at + kGranule;
        }
      }
    }
  }

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kLeaves = 1 << 8, kMiddles = 1 << 7;
  static constexpr Bytes kLeafSpan = kGranule * kLeaves;
  using Leaf = std::array<Entry, kLeaves>;
  using Middle = std::array<std::unique_ptr<Leaf>, kMiddles>;

  static std::uint64_t leaf_index(Address at) { return at.value / kGranule.count % kLeaves; }
  static std::uint64_t middle_index(Address at) { return at.value / kLeafSpan.count % kMiddles; }
  static std::uint64_t top_index(Address at) { return at.value / kLeafSpan.count / kMiddles; }

  Entry& slot(Address at) {
    assert(at < kEnd && at.value % kGranule.count == 0);
    const std::uint64_t wanted = top_index(at);
    if (top_.empty()) first_top_ = wanted;
    if (wanted < first_top_) {
      std::vector<std::unique_ptr<Middle>> more(first_top_ - wanted);
      more.insert(more.end(), std::make_move_iterator(top_.begin()),
                  std::make_move_iterator(top_.end()));
      top_ = std::move(more);
      first_top_ = wanted;
    }
    if (wanted - first_top_ >= top_.size()) top_.resize(wanted - first_top_ + 1);
    std::unique_ptr<Middle>& middle = top_[wanted - first_top_];
    if (!middle) middle = std::make_unique<Middle>();
    std::unique_ptr<Leaf>& leaf = (*middle)[middle_index(at)];
    if (!leaf) leaf = std::make_unique<Leaf>();
    return (*leaf)[leaf_index(at)];
  }

  std::uint64_t first_top_ = 0;
  std::vector<std::unique_ptr<Middle>> top_;  // the first is of index first_top_
};

}  // namespace weir
