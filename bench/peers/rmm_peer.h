// SPDX-License-Identifier: Apache-2.0
// RMM's resources, over cudaMalloc or the driver's pool.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <rmm/cuda_device.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <utility>

#include "bench/peers/cuda_check.h"
#include "bench/peers/peer.h"

namespace weir::peers {

// As its users make uses on other streams safe: the owner waits before it frees.
template <class Resource>
class RmmPeer {
 public:
  static constexpr bool kFences = true;
  using StreamRef = cudaStream_t;

  explicit RmmPeer(Resource resource) : resource_(std::move(resource)) {
    check_cuda("cudaEventCreateWithFlags",
               cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  RmmPeer(const RmmPeer&) = delete;
  RmmPeer& operator=(const RmmPeer&) = delete;
  ~RmmPeer() { cudaEventDestroy(event_); }

  StreamRef stream_ref(void* stream) { return static_cast<cudaStream_t>(stream); }
  void* allocate(std::size_t bytes, StreamRef stream) {
    return resource_.allocate(stream, bytes, kAlignment);
  }
  void fence(void*, StreamRef owner, StreamRef user) {
    check_cuda("cudaEventRecord", cudaEventRecord(event_, user));
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(owner, event_, 0));
  }
  // A block's size is the caller's to know: this is what weir_suite_functions::free gives.
  void free(void* block, std::size_t bytes, StreamRef stream) {
    resource_.deallocate(stream, block, bytes, kAlignment);
  }
  void free(void*, StreamRef) { std::abort(); }  // for the concept Peer: never called

 protected:
  Resource& resource() { return resource_; }
  const Resource& resource() const { return resource_; }

 private:
  static constexpr std::size_t kAlignment = 256;

  Resource resource_;
  cudaEvent_t event_ = nullptr;
};

// Begins with nothing, and doubles what it has when that doesn't suffice.
class RmmPool : public RmmPeer<rmm::mr::pool_memory_resource> {
 public:
  RmmPool() : RmmPeer(rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, 0}) {}
  Reserved reserved() const { return resource().pool_size(); }
};

// Takes half of the free memory when it is made, as by default.
class RmmArena : public RmmPeer<rmm::mr::arena_memory_resource> {
 public:
  RmmArena() : RmmPeer(rmm::mr::arena_memory_resource{rmm::mr::cuda_memory_resource{}}) {}
  Reserved reserved() const {
    const auto [free, total] = rmm::available_device_memory();
    return total - free;
  }
};

class RmmAsync : public RmmPeer<rmm::mr::cuda_async_memory_resource> {
 public:
  RmmAsync() : RmmPeer(rmm::mr::cuda_async_memory_resource{}) {}
  Reserved reserved() const {
    std::uint64_t bytes = 0;
    check_cuda("cudaMemPoolGetAttribute",
               cudaMemPoolGetAttribute(resource().pool_handle(), cudaMemPoolAttrReservedMemCurrent,
                                       &bytes));
    return bytes;
  }
};

}  // namespace weir::peers
