// SPDX-License-Identifier: Apache-2.0
#include "core/time/fence_set.h"

namespace weir {

// Where one of them has more than a few.
FenceSet& FenceSet::assign_many(const FenceSet& other) {
  if (this == &other) return *this;
  few_ = other.few_;
  few_size_ = other.few_size_;
  many_ = other.many_ ? std::make_unique<Many>(*other.many_) : nullptr;
  return *this;
}

void FenceSet::join(Fence fence) {
  const std::size_t count = size();
  Fence* const mine = many_ ? many_->data() : few_.data();
  for (std::size_t i = 0; i < count; ++i) {
    if (mine[i].timeline != fence.timeline) continue;
    mine[i].sequence = std::max(mine[i].sequence, fence.sequence);
    return;
  }
  if (!many_ && few_size_ < kFew) {
    few_[few_size_++] = fence;
    return;
  }
  if (!many_) many_ = std::make_unique<Many>(few_.begin(), few_.end());
  many_->push_back(fence);
}

void FenceSet::join(const FenceSet& other) {
  for (const Fence fence : other) join(fence);
}

}  // namespace weir
