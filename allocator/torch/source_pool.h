// A pool whose memory another allocator gives (torch.cuda.MemPool(allocator)): whole blocks, kept
// when they are freed, and given out again where one is large enough and not much too large.
//
// A freed block serves its own stream only; uses by other streams are the source's to know, as
// record_stream() on such a block reaches it.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "weir/types.h"

namespace weir::pytorch {

// Threads: self-synchronised; the source is called with no lock held.
class SourcePool {
 public:
  using CudaAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  struct Block {
    void* address = nullptr;
    Bytes bytes, requested;
    cudaStream_t stream = nullptr;
    bool live = false;
  };

  explicit SourcePool(std::shared_ptr<CudaAllocator> source) : source_(std::move(source)) {}
  // Gives everything back: no block is live any more.
  ~SourcePool() { empty(); }
  SourcePool(const SourcePool&) = delete;
  SourcePool& operator=(const SourcePool&) = delete;

  // Errors: what the source throws.
  void* allocate(Bytes bytes, cudaStream_t stream);
  bool holds(const void* block) const;
  void deallocate(void* block);
  // Gives back what is not live.
  void empty();

  std::size_t live() const;
  std::vector<Block> blocks() const;
  CudaAllocator& source() const { return *source_; }

 private:
  const std::shared_ptr<CudaAllocator> source_;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;  // guarded by mutex_
};

}  // namespace weir::pytorch
