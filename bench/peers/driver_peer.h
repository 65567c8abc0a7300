// SPDX-License-Identifier: Apache-2.0
// The driver's own allocator: cudaMallocAsync on the device's default pool, which keeps what it
// has.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "bench/peers/cuda_check.h"
#include "bench/peers/peer.h"

namespace weir::peers {

class DriverPool {
 public:
  static constexpr bool kFences = true;
  using StreamRef = cudaStream_t;

  DriverPool() {
    check_cuda("cudaDeviceGetDefaultMemPool", cudaDeviceGetDefaultMemPool(&pool_, 0));
    std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
    check_cuda("cudaMemPoolSetAttribute",
               cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
    check_cuda("cudaEventCreateWithFlags",
               cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  DriverPool(const DriverPool&) = delete;
  DriverPool& operator=(const DriverPool&) = delete;
  ~DriverPool() {
    cudaDeviceSynchronize();
    cudaEventDestroy(event_);
    cudaMemPoolTrimTo(pool_, 0);
  }

  StreamRef stream_ref(void* stream) { return static_cast<cudaStream_t>(stream); }
  void* allocate(std::size_t bytes, StreamRef stream) {
    void* block = nullptr;
    check_cuda("cudaMallocAsync", cudaMallocAsync(&block, bytes, stream));
    return block;
  }
  // As its users do by hand: the owner waits before it frees. (So all of its later work waits, too,
  // whether it uses these bytes or not.) One event serves all: a wait is for the record before it.
  // From one thread only.
  void fence(void*, StreamRef owner, StreamRef user) {
    check_cuda("cudaEventRecord", cudaEventRecord(event_, user));
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(owner, event_, 0));
  }
  void free(void* block, StreamRef stream) {
    check_cuda("cudaFreeAsync", cudaFreeAsync(block, stream));
  }
  void trim() { check_cuda("cudaMemPoolTrimTo", cudaMemPoolTrimTo(pool_, 0)); }
  Reserved reserved() const {
    std::uint64_t bytes = 0;
    check_cuda("cudaMemPoolGetAttribute",
               cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes));
    return bytes;
  }

 private:
  cudaMemPool_t pool_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

}  // namespace weir::peers
