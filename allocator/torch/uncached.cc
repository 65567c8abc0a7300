#include "torch/uncached.h"

#include <optional>

#include "torch/device_wait.h"

namespace weir::pytorch {

Result<void*> Uncached::allocate(Bytes bytes, Stream stream) {
  std::call_once(made_, [this] {
    owned_ = std::make_unique<DeviceHeap>(device_, HeapOptions{.trust = Trust::context});
    heap_.store(owned_.get(), std::memory_order_release);
  });
  return owned_->allocate(bytes, stream);
}

Status Uncached::deallocate(void* block) {
  const std::optional<BlockInfo> info = owned_->find(block);
  const bool begins_there = info && info->address.pointer() == block;
  {
    const std::lock_guard lock(mutex_);
    if (!begins_there || !freed_.insert(block).second) {
      return Error(ErrorCode::unknown_pointer,
                   "the block was freed already, or is no block's beginning");
    }
  }
  (void)empty();
  return {};
}

// A block is the heap's to unmap only after the wait: another thread's call unmaps all that is
// idle.
Status Uncached::empty() {
  if (heap() == nullptr) return {};
  std::unordered_set<void*> going;
  {
    const std::lock_guard lock(mutex_);
    going.swap(freed_);
  }
  Status waited = wait_for_all_work(device_);
  for (void* const block : going) {
    if (waited) waited = owned_->deallocate(block);
    if (waited) continue;
    const std::lock_guard lock(mutex_);
    freed_.insert(block);
  }
  if (!waited) return waited;
  const Result<Bytes> gone = owned_->trim(0_B, Trim::waits);
  return gone ? Status{} : Status(gone.error());
}

}  // namespace weir::pytorch
