// SPDX-License-Identifier: Apache-2.0
// What the records of large and small blocks have in common. Whoever owns the records guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/time/fence_set.h"
#include "weir/types.h"

namespace weir {

enum class BlockState : std::uint8_t {
  free,    // a stretch of a slab that nobody has
  live,    // between allocate() and deallocate()
  cached,  // deallocated, and kept whole for the next request of its size
};

// Who beside a block's own stream uses it; or who may still use free bytes, beside the stream that
// freed them.
struct BlockUses {
  FenceSet fences;                // of other streams
  std::vector<TimelineId> users;  // that record_stream named; of a live block alone
};

// Null: none.
class BlockUsesPtr {
 public:
  explicit operator bool() const { return uses_ != nullptr; }
  BlockUses* operator->() const { return uses_.get(); }
  // New if need be.
  BlockUses& get() {
    if (!uses_) uses_ = std::make_unique<BlockUses>();
    return *uses_;
  }
  void reset() { uses_.reset(); }
  // Takes over the fences of `other`, which is null afterwards.
  void join(BlockUsesPtr&& other) {
    if (!other.uses_) return;
    if (!uses_) {
      uses_ = std::move(other.uses_);
    } else {
      uses_->fences.join(other.uses_->fences);
      other.reset();
    }
  }
  void join(const FenceSet& fences) {
    if (!fences.empty()) get().fences.join(fences);
  }
  // Uses of their own with the same fences.
  BlockUsesPtr copy() const {
    BlockUsesPtr copy;
    if (uses_) copy.get().fences = uses_->fences;
    return copy;
  }
  FenceSet fences() const { return uses_ ? uses_->fences : FenceSet{}; }
  bool same_fences(const BlockUsesPtr& other) const {
    if (!uses_ || !other.uses_) return uses_ == other.uses_;
    return uses_->fences == other.uses_->fences;
  }

 private:
  std::unique_ptr<BlockUses> uses_;
};

}  // namespace weir
