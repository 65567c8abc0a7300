// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes: PyTorch's IPC handles for blocks of Weir's.
//
// Pages: a handle names the socket where file descriptors of the pages are to be had
// (descriptor_server.h). All pages of a block are shared.
//
// Plain memory, and that of a pool with a source: the driver's handle, as PyTorch's own allocator
// writes it. So processes with and without Weir can share it with each other.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch/descriptor_server.h"
#include "weir/cuda_device.h"
#include "weir/device_heap.h"

namespace weir::pytorch {

// What a handle says of a block whose memory is pages.
struct SharedBlock {
  int process = 0;  // that shares, for messages
  DescriptorServer::Offer offer;
  Bytes skipped;  // of the first page, before the block
  Bytes bytes;
  std::vector<Bytes> pages;  // their sizes

  std::string encode() const;
  // Errors: invalid_input (not a handle of Weir's, or of another version; or damaged).
  static Result<SharedBlock> decode(const std::string& handle);
};

// What PyTorch's own allocator writes for memory of cudaMalloc's: a version, a kind and the
// driver's handle of 64 bytes; or, before PyTorch 2.5, that alone.
std::string encode_segment(const std::string& driver_handle);
// The driver's handle. Errors: invalid_input (it is none; the message says what it is).
Result<std::string> decode_segment(const std::string& handle);

// Of the byte at `offset` in a segment of the driver's, as PyTorch's own allocator shares it.
// Errors: device; unavailable (no CUDA device).
Result<c10::cuda::CUDACachingAllocator::ShareableHandle> share_segment(Device& device,
                                                                       Address segment,
                                                                       Bytes offset);

// The blocks that this process shares. The descriptors of their pages stay open while they live.
// Threads: self-synchronised.
class SharedBlocks {
 public:
  // Errors: unknown_pointer; device; unavailable (no CUDA device).
  Result<c10::cuda::CUDACachingAllocator::ShareableHandle> share(DeviceHeap& heap, Device& device,
                                                                 void* pointer);
  bool any() const { return any_.load(std::memory_order_relaxed); }
  void forget(const void* block);

 private:
  struct Known {
    std::string handle, key;
    DeviceHeap* heap = nullptr;
    std::uint64_t hold = 0;  // it can't sleep
  };
  Result<Known> share_pages(MemoryExchange& exchange, const BlockInfo& block,
                            const std::vector<PagePart>& parts);

  std::atomic<bool> any_{false};
  DescriptorServer server_;
  std::mutex mutex_;
  std::map<const void*, Known> blocks_;  // guarded by mutex_
};

class OpenedMemory;

// The memory of other processes that is open here. Threads: self-synchronised.
class OpenedBlocks {
 public:
  // The memory of a handle, mapped on `device` while somebody holds it, and once for all who do.
  // When the last one lets it go, the host waits for the work of the device, and it is unmapped.
  // Errors: invalid_input; device; unknown_pointer (the other process has freed the memory);
  // unavailable (it is gone, or can't be reached; the device is none of CUDA's).
  Result<std::shared_ptr<void>> open(Device& device, const std::string& handle);
  // The device gives access to what is mapped in another way now.
  Status renew_access(const Device& device);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<OpenedMemory>> by_handle_;  // guarded by mutex_
};

}  // namespace weir::pytorch
