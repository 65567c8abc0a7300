// SPDX-License-Identifier: Apache-2.0
// Where the benchmark's programs get their memory.
#pragma once

#include <algorithm>
#include <unordered_map>

#include "bench/graph_pool/need.h"
#include "weir/device_heap.h"

namespace weir::graph_pool {

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;
  virtual void* allocate(Bytes bytes, Stream stream) = 0;
  virtual void fence(void* block, Stream user) = 0;  // before a free that does not wait for `user`
  virtual void deallocate(void* block) = 0;
};

// The heap, or the pool that requests are bound to.
class HeapMemory final : public Memory {
 public:
  explicit HeapMemory(DeviceHeap& heap) : heap_(heap) {}
  void* allocate(Bytes bytes, Stream stream) override {
    return need("allocate", heap_.allocate(bytes, stream));
  }
  void fence(void* block, Stream user) override { need("fence", heap_.fence(block, user)); }
  void deallocate(void* block) override { need("deallocate", heap_.deallocate(block)); }

 private:
  DeviceHeap& heap_;
};

// A memory, and how much of it is live: the program's own need, counted from what it asks for.
class Ledger {
 public:
  explicit Ledger(Memory& memory) : memory_(memory) {}
  void* allocate(Bytes bytes, Stream stream) {
    void* const block = memory_.allocate(bytes, stream);
    sizes_[block] = round_up(bytes, kGrain);
    live_ += sizes_[block];
    peak_ = std::max(peak_, live_);
    return block;
  }
  void fence(void* block, Stream user) { memory_.fence(block, user); }
  void deallocate(void* block) {
    memory_.deallocate(block);
    live_ -= sizes_.at(block);
    sizes_.erase(block);
  }
  Bytes peak() const { return peak_; }

 private:
  Memory& memory_;
  std::unordered_map<void*, Bytes> sizes_;
  Bytes live_, peak_;
};

}  // namespace weir::graph_pool
