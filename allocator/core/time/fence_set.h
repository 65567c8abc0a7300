// SPDX-License-Identifier: Apache-2.0
// Sets of points on timelines: what somebody must wait for.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "weir/types.h"

namespace weir {

// At most one fence a timeline, the latest: it implies the earlier ones. In the order in which the
// timelines were first joined. A few fences need no memory beside the set. Not thread-safe.
class FenceSet {
 public:
  FenceSet() = default;
  FenceSet(Fence fence) { join(fence); }  // NOLINT(google-explicit-constructor)
  FenceSet(const FenceSet& other) { *this = other; }
  FenceSet(FenceSet&& other) noexcept { *this = std::move(other); }
  FenceSet& operator=(const FenceSet& other);
  // Leaves `other` empty.
  FenceSet& operator=(FenceSet&& other) noexcept;
  ~FenceSet() = default;

  void join(Fence fence);
  void join(const FenceSet& other);
  bool empty() const { return size() == 0; }
  void clear();
  const Fence* begin() const { return many_ ? many_->data() : few_.data(); }
  const Fence* end() const { return begin() + size(); }
  std::size_t size() const { return many_ ? many_->size() : few_size_; }
  friend bool operator==(const FenceSet& a, const FenceSet& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr std::size_t kFew = 3;
  using Many = std::vector<Fence>;
  FenceSet& assign_many(const FenceSet& other);

  std::array<Fence, kFew> few_;
  std::uint32_t few_size_ = 0;
  std::unique_ptr<Many> many_;  // where there are, or were, more than kFew: all of them
};
static_assert(sizeof(FenceSet) <= 64, "blocks and requests hold one each");

inline FenceSet& FenceSet::operator=(const FenceSet& other) {
  if (many_ || other.many_) [[unlikely]]
    return assign_many(other);
  few_ = other.few_;
  few_size_ = other.few_size_;
  return *this;
}

inline FenceSet& FenceSet::operator=(FenceSet&& other) noexcept {
  few_ = other.few_;
  few_size_ = std::exchange(other.few_size_, 0);
  many_ = std::move(other.many_);
  return *this;
}

inline void FenceSet::clear() {
  few_size_ = 0;
  if (many_) many_->clear();
}

}  // namespace weir
