// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes: PyTorch's IPC handles for blocks whose memory is pages.
//
// A handle names the process that shares and its file descriptors of the pages, which the receiver
// takes over with pidfd_getfd(): so both must run as the same user, and the system must allow one
// to trace the other (kernel.yama.ptrace_scope 0, or a common parent that says so).
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weir/cuda_device.h"
#include "weir/device_heap.h"

namespace weir::pytorch {

// What a handle says.
struct SharedBlock {
  int process = 0;
  Bytes skipped;  // of the first page, before the block
  Bytes bytes;
  struct Page {
    int descriptor = -1;
    Bytes bytes;
  };
  std::vector<Page> pages;

  std::string encode() const;
  // Errors: invalid_input (not a handle of Weir's, or of another version).
  static Result<SharedBlock> decode(const std::string& handle);
};

// The blocks that this process shares. Their descriptors stay open while they live.
// Threads: self-synchronised.
class SharedBlocks {
 public:
  // Errors: unknown_pointer; device; unavailable (no CUDA device).
  Result<c10::cuda::CUDACachingAllocator::ShareableHandle> share(DeviceHeap& heap, Device& device,
                                                                 void* pointer);
  bool any() const { return any_.load(std::memory_order_relaxed); }
  void forget(const void* block);

 private:
  struct Descriptors {
    std::string handle;
    std::vector<int> open;
  };
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::map<const void*, Descriptors> blocks_;  // guarded by mutex_
};

// A page from a file descriptor, which stays the caller's: CudaDevice::import_page().
using PageImporter = std::function<Result<PhysicalHandle>(int descriptor)>;

class MappedPages;

// The memory of other processes that is mapped here. Threads: self-synchronised.
class OpenedBlocks {
 public:
  // The memory of a handle, mapped on `device` while somebody holds it, and once for all who do.
  // When the last one lets it go, the host waits for the work of the device, and it is unmapped.
  // Errors: invalid_input; device; unavailable (the other process is gone, or can't be reached).
  Result<std::shared_ptr<void>> open(Device& device, const PageImporter& import,
                                     const std::string& handle);
  // The device gives access to what is mapped in another way now.
  Status renew_access(const Device& device);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<MappedPages>> by_handle_;  // guarded by mutex_
};

}  // namespace weir::pytorch
