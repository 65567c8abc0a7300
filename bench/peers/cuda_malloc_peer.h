// SPDX-License-Identifier: Apache-2.0
// The driver with no allocator before it: cudaMalloc and cudaFree.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "bench/peers/cuda_check.h"
#include "bench/peers/peer.h"

namespace weir::peers {

class CudaMalloc {
 public:
  static constexpr bool kFences = true;
  struct StreamRef {};

  CudaMalloc() : free_before_(free_bytes()) {}

  StreamRef stream_ref(void*) { return {}; }
  void* allocate(std::size_t bytes, StreamRef) {
    void* block = nullptr;
    check_cuda("cudaMalloc", cudaMalloc(&block, bytes));
    return block;
  }
  void fence(void*, StreamRef, StreamRef) {}  // cudaFree waits for the whole device
  void free(void* block, StreamRef) { check_cuda("cudaFree", cudaFree(block)); }
  // Others on the GPU change it too.
  Reserved reserved() const {
    const std::uint64_t now = free_bytes();
    return free_before_ > now ? free_before_ - now : 0;
  }

 private:
  static std::uint64_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    check_cuda("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
    return free;
  }

  const std::uint64_t free_before_;
};

}  // namespace weir::peers
