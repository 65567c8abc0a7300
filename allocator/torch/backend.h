// SPDX-License-Identifier: Apache-2.0
// Weir as PyTorch's CUDA allocator: every virtual function of CUDAAllocator, for all devices.
//
// One for the process, which outlives everything else: tensors may be freed while it exits. In a
// child of fork() its calls throw c10::Error, but for those that destructors make: these do
// nothing.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch/device_memory.h"
#include "torch/ipc.h"
#include "torch/process_end.h"
#include "torch/versions.h"
#include "weir/allocator.h"

namespace weir::pytorch {

// CUDACachingAllocator's, since PyTorch 2.12.
using OomRejectionObserver = std::function<void(std::int64_t device, std::size_t asked,
                                                std::size_t reserved, std::size_t device_total)>;
using c10::cuda::CUDACachingAllocator::AllocatorState;
using c10::cuda::CUDACachingAllocator::CheckpointDelta;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
using c10::cuda::CUDACachingAllocator::ShareableHandle;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;
using c10::cuda::CUDACachingAllocator::StreamSegmentSize;

class Backend final : public CUDAAllocator {
 public:
  using CUDAAllocator::recordStream;

  // `allocator` must outlive this.
  explicit Backend(weir::Allocator& allocator) : allocator_(allocator) {}

  // The memory of one device; opened when it is first asked for.
  DeviceMemory& memory(int device) {
    DeviceMemory* const known = opened(device);
    return known != nullptr ? *known : open(device);
  }
  // Null: it was not asked for yet. For calls that only look: programs look at all devices, and an
  // opened one has a context, which takes some hundred MiB of it.
  DeviceMemory* opened(int device) const {
    refuse_after_fork();
    return memories_.at(static_cast<std::size_t>(device)).load();
  }

  // c10::Allocator
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // c10::DeviceAllocator
  bool initialized() override { return devices_.load() > 0; }
  void emptyCache(c10::MempoolId_t pool) override;
  native::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;

  // CUDAAllocator
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* block) override;
  void init(int device_count) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override { return enabled_.load(); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* pointer, std::size_t* size) override;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override;
  SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;
  // This thread failed to begin or to end a capture on a current stream: PyTorch does not end what
  // it began for it.
  void close_failed_captures();
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> source) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, native::CreateContextFn context, std::size_t most_entries,
                     native::RecordContext when, bool clear,
                     const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
#if WEIR_TORCH_SINCE(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override;
  void attachOomRejectionObserver(OomRejectionObserver observer) override;
#endif
#if WEIR_TORCH_SINCE(14)
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void* pointer, const std::string& metadata) override;
#endif
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex reaches) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes, cudaStream_t stream, bool p2p_enabled) override;
  std::shared_ptr<AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                     c10::MempoolId_t pool) override;
  CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                         std::shared_ptr<AllocatorState> state) override;
  // PyTorch's Python asks whether that is "native" before it calls what only its own can do; and
  // this can do all of it.
  std::string name() override { return "native"; }

  // recordStream(), of a block that is Weir's.
  void record_stream(void* block, c10::cuda::CUDAStream user);
  // Work queued so far on `stream` uses the blocks that these pointers point into: weir.fence().
  void fence(std::span<void* const> pointers, c10::DeviceIndex device, cudaStream_t stream);

 private:
  static constexpr std::size_t kMostDevices = 64;

  // Before any lock is taken.
  static void refuse_after_fork() { TORCH_CHECK(!is_forked_child(), kUsedAfterFork); }
  std::unique_lock<std::mutex> lock() {
    refuse_after_fork();
    return std::unique_lock(mutex_);
  }
  // The current device. To ask for it costs as much as all the rest, and threads meet there.
  c10::DeviceIndex its_device() const {
    return devices_.load(std::memory_order_relaxed) == 1 ? c10::DeviceIndex{0} : current_device();
  }
  static c10::DeviceIndex current_device();
  void* allocate_on(c10::DeviceIndex device, std::size_t bytes);
  // As opened(), of a number that a program gave.
  DeviceMemory* looked_at(c10::DeviceIndex device) const;
  DeviceMemory& open(int device);
  // Calls visit(memory) for each that is open.
  template <class Visit>
  void for_each(Visit&& visit) {
    refuse_after_fork();
    for (std::atomic<DeviceMemory*>& place : memories_) {
      if (DeviceMemory* const memory = place.load()) visit(*memory);
    }
  }
  struct Owned {
    DeviceMemory& memory;
    DeviceMemory::Found block;
  };
  // The live block that `pointer` points into. Errors: c10::Error, with the call's name.
  Owned owner(const void* pointer, const char* call);

  weir::Allocator& allocator_;
  std::atomic<int> devices_{0};
  std::atomic<bool> enabled_{true};
  std::array<std::atomic<DeviceMemory*>, kMostDevices> memories_{};
  SharedBlocks shared_;
  OpenedBlocks opened_;
  c10::ApproximateClockToUnixTimeConverter clock_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<DeviceMemory>> owned_;  // guarded by mutex_
  History::Options history_;                          // guarded by mutex_; for devices opened later
  std::vector<OutOfMemoryObserver> observers_;        // by mutex_
  std::vector<OomRejectionObserver> rejection_observers_;  // by mutex_
  std::vector<native::AllocatorTraceTracker> trackers_;    // by mutex_
};

// The one that is in use, once install() was called.
Backend* installed();
// Makes a backend the allocator of this process. Throws c10::Error if CUDA was used before.
void install(weir::Allocator& allocator);

}  // namespace weir::pytorch
