// SPDX-License-Identifier: Apache-2.0
// A block of a device heap that goes back when its scope ends.
#pragma once

#include <utility>

#include "weir/device_heap.h"

namespace weir {

class Block {
 public:
  static Result<Block> allocate(DeviceHeap& heap, Bytes bytes, Stream stream) {
    Result<void*> memory = heap.allocate(bytes, stream);
    if (!memory) return std::move(memory).error();
    return Block(heap, *memory, bytes);
  }
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Block() { (void)free(); }

  // Now; its error, which the end of the scope would not tell.
  Status free() {
    if (memory_ == nullptr) return {};
    return heap_->deallocate(std::exchange(memory_, nullptr));
  }
  void* get() const { return memory_; }
  Bytes bytes() const { return bytes_; }

 private:
  Block(DeviceHeap& heap, void* memory, Bytes bytes)
      : heap_(&heap), memory_(memory), bytes_(bytes) {}
  void swap(Block& other) {
    std::swap(heap_, other.heap_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
  }

  DeviceHeap* heap_ = nullptr;
  void* memory_ = nullptr;
  Bytes bytes_;
};

}  // namespace weir
