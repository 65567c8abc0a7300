// SPDX-License-Identifier: Apache-2.0
// PyTorch's streams, as Weir knows them.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "weir/device_heap.h"

namespace weir::pytorch {

// Which of Weir's streams a stream of PyTorch's is, without a driver call where that is sure:
// PyTorch's own streams live as long as the process, so that a handle of theirs never becomes
// another stream's. (Even CUDAStream::stream(), which tells the handle, makes such calls.)
// Threads: self-synchronised.
class Streams {
 public:
  // `heap`, and `device`, which is its, must outlive this. `gpu`: PyTorch's number of that; none:
  // there is no GPU, and the runtime knows nothing of the streams.
  Streams(DeviceHeap& heap, Device& device, std::optional<c10::DeviceIndex> gpu)
      : heap_(heap), device_(device), gpu_(gpu) {}

  // Errors: device (the handle is no stream's); capture (DeviceHeap::stream()).
  Result<Stream> of(c10::cuda::CUDAStream stream);
  // A handle alone: of one of PyTorch's streams, or of any other, which may be destroyed at any
  // time.
  Result<Stream> of(cudaStream_t handle);
  // A stream that lives as long as the process, though PyTorch did not make it.
  Result<Stream> of_lasting(cudaStream_t handle);
  // Null: this thread has not asked of() about it, or it may not last.
  const Stream* known(c10::cuda::CUDAStream stream) const {
    const Known& known = known_of(stream.id());
    return known.of == number_ && known.id == stream.id() ? &known.stream : nullptr;
  }
  // The handle of a stream that of() was asked about; null: of the default stream, or unknown.
  cudaStream_t handle_of(std::uint64_t stream) const;

 private:
  // What a thread knows: streams that last, of devices that last.
  struct Known {
    std::uint64_t of = 0;  // number_: another may come to lie where one lay
    c10::StreamId id = 0;
    Stream stream;
  };
  static Known& known_of(c10::StreamId id);
  void note(Stream stream, cudaStream_t handle);
  bool is_lasting(cudaStream_t handle) const;
  void list_pool();

  inline static constinit std::atomic<std::uint64_t> made_{0};

  DeviceHeap& heap_;
  Device& device_;
  const std::optional<c10::DeviceIndex> gpu_;
  const std::uint64_t number_ = made_.fetch_add(1, std::memory_order_relaxed) + 1;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, cudaStream_t> handles_;  // by Stream::id; guarded by mutex_
  std::once_flag pool_listed_;
  std::unordered_set<cudaStream_t> lasting_;  // as far as was asked for; guarded by mutex_
};

inline Streams::Known& Streams::known_of(c10::StreamId id) {
  constinit static thread_local std::array<Known, 16> known;
  const auto bits = static_cast<std::uint64_t>(id);
  return known[(bits ^ bits >> 5) % known.size()];
}

}  // namespace weir::pytorch
