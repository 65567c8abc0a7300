// SPDX-License-Identifier: Apache-2.0
// PyTorch's CUDA caching allocator, through its C++ interface, without tensors or Python. Its
// backend and settings are those that PYTORCH_CUDA_ALLOC_CONF had when the process started.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <stdexcept>
#include <string>
#include <unordered_map>

#include "bench/peers/peer.h"
#include "bench/peers/torch_context.h"

namespace weir::peers {

class Torch {
 public:
  static constexpr bool kFences = true;
  struct StreamRef {
    cudaStream_t raw;
    c10::cuda::CUDAStream stream;
  };

  Torch() {
    allocator_->init(c10::cuda::device_count());
    deleter_ = allocator_->raw_deleter();
    // recordStream() passes over memory whose deleter it does not know, and says nothing.
    if (deleter_ == nullptr) throw std::runtime_error("PyTorch's allocator has no raw_deleter()");
  }
  Torch(const Torch&) = delete;
  Torch& operator=(const Torch&) = delete;
  // The allocator is the process's: the next one is the same, without its memory.
  ~Torch() {
    try {
      allocator_->emptyCache();
    } catch (const std::exception&) {  // what failed has been reported
    }
  }

  // As the process was told to use: "native", "expandable" or "async".
  static std::string setting() {
    if (c10::cuda::CUDACachingAllocator::get()->name() == "cudaMallocAsync") return "async";
    // The first line reads the environment. (CUDAAllocatorConfig's own answer depends on a macro of
    // PyTorch's build, which its headers don't carry.)
    static_cast<void>(c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::instance());
    using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
    return Config::use_expandable_segments() ? "expandable" : "native";
  }

  StreamRef stream_ref(void* stream) {
    const auto raw = static_cast<cudaStream_t>(stream);
    return {raw, c10::cuda::getStreamFromExternal(raw, 0)};
  }
  void* allocate(std::size_t bytes, StreamRef& stream) {
    return allocator_->raw_alloc_with_stream(bytes, stream.raw);
  }
  // The fence is taken when the block is freed; the block comes back when a later allocation finds,
  // by asking, that it is past. Until then other memory is used: reuse never waits on the GPU.
  void fence(void* block, StreamRef&, StreamRef& user) {
    c10::DataPtr data(block, block, deleter_, c10::Device(c10::kCUDA, 0));
    allocator_->recordStream(data, user.stream);
    static_cast<void>(data.release_context());
  }
  void free(void* block, StreamRef&) { allocator_->raw_delete(block); }
  // Waits for nothing, as programs call it between phases.
  void trim() { allocator_->emptyCache(); }
  Reserved reserved() const {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return static_cast<std::uint64_t>(allocator_->getDeviceStats(0).reserved_bytes[kAll].current);
  }

 private:
  c10::cuda::CUDACachingAllocator::CUDAAllocator* const allocator_ =
      c10::cuda::CUDACachingAllocator::get();
  c10::DeleterFnPtr deleter_ = nullptr;
};

// The same as PyTorch's own tensors call it: on the thread's current stream, which is one of
// PyTorch's.
class TorchRaw {
 public:
  static constexpr bool kFences = true;
  static constexpr bool kOtherStreams = true;
  using StreamRef = c10::cuda::CUDAStream;

  StreamRef stream_ref(void* stream) {
    return streams_.try_emplace(stream, c10::cuda::getStreamFromPool(false, 0)).first->second;
  }
  void* allocate(std::size_t bytes, StreamRef& stream) {
    thread_local cudaStream_t current = nullptr;
    if (current != stream.stream()) {
      c10::cuda::setCurrentCUDAStream(stream);
      current = stream.stream();
    }
    return allocator_->raw_alloc(bytes);
  }
  void fence(void* block, StreamRef&, StreamRef& user) {
    Torch::StreamRef given{user.stream(), user};
    torch_.fence(block, given, given);
  }
  void free(void* block, StreamRef&) { allocator_->raw_delete(block); }
  Reserved reserved() const { return torch_.reserved(); }

 private:
  Torch torch_;
  c10::cuda::CUDACachingAllocator::CUDAAllocator* const allocator_ =
      c10::cuda::CUDACachingAllocator::get();
  std::unordered_map<void*, StreamRef> streams_;  // by the stream that each stands for
};

// With Weir as PyTorch's allocator.
template <class Base>
class WithWeir : public Base {
 public:
  DriverSplit driver_split() const { return weir_driver_split(); }
};

}  // namespace weir::peers
