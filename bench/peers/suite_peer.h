// SPDX-License-Identifier: Apache-2.0
// A peer (peer.h) as an allocator of `weir bench`: the functions of suite_allocator.h. Where there
// is no GPU, libweir_no_cuda.so is loaded (suite_loader.cc), and counts what the peer asks for.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/cuda_check.h"
#include "bench/peers/no_cuda.h"
#include "bench/peers/peer.h"
#include "suite/suite_allocator.h"

namespace weir::peers {

// Null: the CUDA runtime is a real one.
struct NoCuda {
  void (*reset)() = symbol<void()>("weir_no_cuda_reset");
  void (*counts)(weir_no_cuda_counts*) = symbol<void(weir_no_cuda_counts*)>("weir_no_cuda_count");
  bool is_loaded() const { return reset != nullptr && counts != nullptr; }

 private:
  template <class Function>
  static Function* symbol(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  }
};

inline std::string& suite_error() {
  static std::string error;
  return error;
}

template <Peer P>
class SuitePeer {
 public:
  explicit SuitePeer(std::uint32_t streams) {
    if (no_cuda_.is_loaded()) no_cuda_.reset();
    peer_ = std::make_unique<P>();
    for (std::uint32_t i = 0; i < streams; ++i) {
      streams_.push_back(peer_->stream_ref(new_stream(i)));
    }
  }
  SuitePeer(const SuitePeer&) = delete;
  SuitePeer& operator=(const SuitePeer&) = delete;
  ~SuitePeer() {
    cudaDeviceSynchronize();
    peer_.reset();
    for (const cudaStream_t stream : made_) cudaStreamDestroy(stream);
  }

  void* allocate(std::uint64_t bytes, std::uint32_t stream) {
    return peer_->allocate(bytes, streams_[stream]);
  }
  void use(void* block, std::uint32_t owner, std::uint32_t user) {
    peer_->fence(block, streams_[owner], streams_[user]);
  }
  void free(void* block, std::uint64_t bytes, std::uint32_t stream) {
    if constexpr (requires(P & peer) { peer.free(block, bytes, streams_[stream]); }) {
      peer_->free(block, bytes, streams_[stream]);
    } else {
      peer_->free(block, streams_[stream]);
    }
  }
  void trim() {
    if constexpr (requires(P & peer) { peer.trim(); }) peer_->trim();
  }
  void figures(weir_suite_figures& figures) const {
    if (no_cuda_.is_loaded()) {
      weir_no_cuda_counts counts{};
      no_cuda_.counts(&counts);
      figures = {counts.held_bytes, counts.most_held_bytes, counts.calls, counts.waits};
    } else {
      figures = {peer_->reserved().value_or(0), 0, WEIR_SUITE_UNKNOWN, WEIR_SUITE_UNKNOWN};
    }
  }

 private:
  void* new_stream(std::uint32_t number) {
    // Aligned as a pointer is: PyTorch tells its own streams by the lowest bits.
    constexpr std::uintptr_t kAlignment = 16;
    if (no_cuda_.is_loaded()) {
      return reinterpret_cast<void*>((number + 1) *
                                     kAlignment);  // NOLINT(performance-no-int-to-ptr)
    }
    cudaStream_t stream = nullptr;
    check_cuda("cudaStreamCreateWithFlags",
               cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    made_.push_back(stream);
    return stream;
  }

  const NoCuda no_cuda_;
  std::unique_ptr<P> peer_;
  std::vector<typename P::StreamRef> streams_;  // by number
  std::vector<cudaStream_t> made_;              // real ones
};

// False: it threw, and suite_error() says what.
template <class Work>
bool without_exceptions(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    suite_error() = error.what();
    return false;
  }
}

// `name` must live as long as the library.
template <Peer P>
const weir_suite_functions* suite_functions(const char* name) {
  using Self = SuitePeer<P>;
  static const weir_suite_functions functions = {
      .version = WEIR_SUITE_VERSION,
      .name = name,
      .create = [](std::uint32_t streams) -> void* {
        Self* self = nullptr;
        without_exceptions([&] { self = new Self(streams); });
        return self;
      },
      .destroy = [](void* self) { delete static_cast<Self*>(self); },
      .allocate = [](void* self, std::uint64_t bytes, std::uint32_t stream,
                     std::uint32_t) -> void* {
        void* block = nullptr;
        without_exceptions([&] { block = static_cast<Self*>(self)->allocate(bytes, stream); });
        return block;
      },
      .use = [](void* self, void* block, std::uint32_t owner, std::uint32_t user) -> int {
        return !without_exceptions([&] { static_cast<Self*>(self)->use(block, owner, user); });
      },
      .free = [](void* self, void* block, std::uint64_t bytes, std::uint32_t stream) -> int {
        return !without_exceptions([&] { static_cast<Self*>(self)->free(block, bytes, stream); });
      },
      .trim = [](void* self) { without_exceptions([&] { static_cast<Self*>(self)->trim(); }); },
      .figures = [](void* self,
                    weir_suite_figures* figures) { static_cast<Self*>(self)->figures(*figures); },
      .error = [](void*) -> const char* { return suite_error().c_str(); }};
  return &functions;
}

}  // namespace weir::peers
