// SPDX-License-Identifier: Apache-2.0
// Memory for what is allocated while caching is switched off
// (torch.cuda.caching_allocator_enable(False)): a heap of its own, which keeps nothing.
//
// As with PyTorch's own allocator, such memory is in no statistics, history, snapshot or recording,
// in no pool, and under no limit.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "weir/device_heap.h"

namespace weir::pytorch {

// Threads: self-synchronised.
class Uncached {
 public:
  // `device`, and the heap that caches its memory otherwise, must outlive this.
  Uncached(Device& device, DeviceHeap& cache) : device_(device), cache_(cache) {}

  // Where the device has no more, idle memory of the cache goes back to it first. Errors: as
  // DeviceHeap::allocate().
  Result<void*> allocate(Bytes bytes, Stream stream);
  // The block is one that heap() owns. Its memory goes back to the driver once the host has waited
  // for all work of the device, as with cudaFree(); what can't go now goes with the next block.
  // Errors: unknown_pointer.
  Status deallocate(void* block);
  // Gives back what a capture kept from going.
  Status empty();

  // Null until something was allocated.
  DeviceHeap* heap() const { return heap_.load(std::memory_order_acquire); }
  bool owns(const void* pointer) const {
    const DeviceHeap* const heap = this->heap();
    return heap != nullptr && heap->owns(pointer);
  }

 private:
  Device& device_;
  DeviceHeap& cache_;
  std::once_flag made_;
  std::unique_ptr<DeviceHeap> owned_;  // by made_
  std::atomic<DeviceHeap*> heap_{nullptr};
};

}  // namespace weir::pytorch
