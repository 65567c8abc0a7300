// SPDX-License-Identifier: Apache-2.0
#include "torch/uncached.h"

namespace weir::pytorch {

Result<void*> Uncached::allocate(Bytes bytes, Stream stream) {
  std::call_once(made_, [this] {
    owned_ = std::make_unique<DeviceHeap>(
        device_, HeapOptions{.trust = Trust::context, .context_events = false});
    (void)device_.prepare_to_synchronize();  // each free waits so
    heap_.store(owned_.get(), std::memory_order_release);
  });
  cache_.captures().meet(stream);
  Result<void*> block = owned_->allocate(bytes, stream);
  if (block || block.error().code() != ErrorCode::out_of_memory) return block;
  (void)cache_.trim();
  return owned_->allocate(bytes, stream);
}

// What is not unmapped, as its page is in use still, may serve the next request at once: so all
// work is over by then.
Status Uncached::deallocate(void* block) {
  if (Status waited = device_.synchronize_context(); !waited) return waited;
  Status freed = owned_->deallocate(block);
  if (freed) (void)empty();
  return freed;
}

Status Uncached::empty() {
  if (heap() == nullptr) return {};
  const Result<Bytes> gone = owned_->trim(0_B, Trim::waits);
  return gone ? Status{} : Status(gone.error());
}

}  // namespace weir::pytorch
