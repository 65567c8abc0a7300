// SPDX-License-Identifier: Apache-2.0
// Blocks of the GPU's that were there before.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/graph_pool/memory.h"

namespace weir::graph_pool {

// A cudaMalloc of its own for each allocation, never used again: nothing can go wrong, and nothing
// waits. After rewind() the same blocks are handed out in the same order, also in a capture.
class FixedMemory final : public Memory {
 public:
  FixedMemory() = default;
  ~FixedMemory() override;
  void* allocate(Bytes bytes, Stream stream) override;
  void fence(void*, Stream) override {}
  void deallocate(void*) override {}
  void rewind() { next_ = 0; }

 private:
  std::vector<void*> blocks_;
  std::size_t next_ = 0;
};

}  // namespace weir::graph_pool
