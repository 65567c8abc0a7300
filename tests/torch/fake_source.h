// SPDX-License-Identifier: Apache-2.0
// An allocator as torch.cuda.MemPool(allocator) takes one: memory of a simulated device, with a
// note of what was asked for and given back.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <map>
#include <vector>

#include "torch/errors.h"
#include "weir/sim_device.h"

namespace weir::pytorch {

class FakeSource final : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using CUDAAllocator::recordStream;

  explicit FakeSource(SimDevice& device) : device_(device) {}
  ~FakeSource() override {
    for (const auto& [at, segment] : segments_) release(Address{at}, segment);
  }

  std::vector<std::size_t> asked;      // sizes, in order
  std::vector<void*> given_back;       // in order
  std::size_t most = ~std::size_t{0};  // bytes that it has; more throw c10::OutOfMemoryError
  bool throws = true;                  // ... or are null
  std::size_t held = 0;
  std::function<void()> while_asked;  // called within a request for memory; empty: nothing is

  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t) override {
    const Bytes size{bytes};
    const bool has_room = held + bytes <= most && size <= check(device_.memory_info()).free;
    if (!has_room && !throws) return nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, has_room, "the source has no more");
    asked.push_back(bytes);
    if (while_asked) while_asked();
    const Address at = check(device_.reserve(size, device_.granularity()));
    const PhysicalHandle page = check(device_.create(size));
    check(device_.map(at, size, page));
    check(device_.set_access(at, size));
    segments_[at.value] = {size, page};
    held += bytes;
    return at.pointer();
  }
  void* raw_alloc(std::size_t bytes) override { return raw_alloc_with_stream(bytes, nullptr); }
  void raw_delete(void* block) override {
    const auto known = segments_.find(Address::of(block).value);
    TORCH_CHECK(known != segments_.end(), "the source did not give ", block);
    given_back.push_back(block);
    held -= known->second.bytes.count;
    release(Address{known->first}, known->second);
    segments_.erase(known);
  }

  // Nobody calls these of a pool's source.
  c10::DataPtr allocate(std::size_t) override { unused(); }
  void copy_data(void*, const void*, std::size_t) const override { unused(); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { unused(); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { unused(); }
  void resetAccumulatedStats(c10::DeviceIndex) override { unused(); }
  void resetPeakStats(c10::DeviceIndex) override { unused(); }
  void init(int) override {}
  double getMemoryFraction(c10::DeviceIndex) override { unused(); }
  void setMemoryFraction(double, c10::DeviceIndex) override { unused(); }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex) override {
    unused();
  }
  void enable(bool) override { unused(); }
  bool isEnabled() const override { return true; }
  void cacheInfo(c10::DeviceIndex, std::size_t*) override { unused(); }
  void* getBaseAllocation(void*, std::size_t*) override { unused(); }
  // As that of a CUDAPluggableAllocator which was given no function for it.
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override {}
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t, bool) override {
    unused();
  }
  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                           std::function<bool(cudaStream_t)>) override {
    unused();
  }
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override { unused(); }
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override { unused(); }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void*) override { unused(); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { unused(); }
  void recordHistory(bool, c10::CachingDeviceAllocator::CreateContextFn, std::size_t,
                     c10::CachingDeviceAllocator::RecordContext, bool,
                     const std::vector<std::string>&) override {
    unused();
  }
  void attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver) override {
    unused();
  }
  void attachOomRejectionObserver(  // pure since PyTorch 2.12
      std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>) {
    unused();
  }
  void attachAllocatorTraceTracker(c10::CachingDeviceAllocator::AllocatorTraceTracker) override {
    unused();
  }
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override { unused(); }
  cudaError_t memcpyAsync(void*, int, const void*, int, std::size_t, cudaStream_t, bool) override {
    unused();
  }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(
      c10::DeviceIndex, c10::MempoolId_t) override {
    unused();
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>) override {
    unused();
  }
  std::string name() override { return "fake"; }

 private:
  struct Segment {
    Bytes bytes;
    PhysicalHandle page;
  };
  [[noreturn]] static void unused() { TORCH_CHECK(false, "not a source's call"); }
  void release(Address at, const Segment& segment) {
    check(device_.unmap(at, segment.bytes));
    check(device_.release(segment.page));
    check(device_.unreserve(at, segment.bytes));
  }

  SimDevice& device_;
  std::map<std::uint64_t, Segment> segments_;
};

}  // namespace weir::pytorch
