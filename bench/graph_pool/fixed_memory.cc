// SPDX-License-Identifier: Apache-2.0
#include "bench/graph_pool/fixed_memory.h"

#include <cuda_runtime_api.h>

#include "bench/peers/cuda_check.h"

namespace weir::graph_pool {

FixedMemory::~FixedMemory() {
  for (void* const block : blocks_) cudaFree(block);
}

void* FixedMemory::allocate(Bytes bytes, Stream /*stream*/) {
  if (next_ == blocks_.size()) {
    void* block = nullptr;
    peers::check_cuda("cudaMalloc", cudaMalloc(&block, bytes.count));
    blocks_.push_back(block);
  }
  return blocks_[next_++];
}

}  // namespace weir::graph_pool
