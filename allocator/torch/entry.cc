// SPDX-License-Identifier: Apache-2.0
// What the Python package calls of the backend, by ctypes.
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "api/c_status.h"
#include "torch/backend.h"
#include "torch/c10d/collective_fences.h"

namespace weir::pytorch {
namespace {

// The one allocator, for as long as the process lives.
weir_allocator_t* the_allocator = nullptr;

// What c10d's operations get fences from; as long-lived, since operations may be on their way.
// Null: WEIR_C10D=0.
CollectiveFences* the_fences = nullptr;

Backend& backend_for(const char* what) {
  Backend* const backend = installed();
  if (backend == nullptr) {
    c::invalid(std::string(what) + ": Weir is not PyTorch's allocator");
  }
  return *backend;
}

}  // namespace

Pools& pools_of(int device, const char* what) { return backend_for(what).memory(device).pools(); }

extern "C" {

// The PyTorch that this was built for ("2.11.0+cu130").
const char* weir_torch_built_for() { return WEIR_TORCH_VERSION; }

weir_allocator_t* weir_torch_allocator() { return the_allocator; }

// Makes Weir the allocator of this process. Settings: WEIR_* of the environment.
weir_status_t weir_torch_enable() {
  return c::guarded([] {
    Config config = c::value_of(Config::from_environment());
    if (!config.trust) config.trust = Trust::context;
    const bool c10d = config.c10d;
    auto allocator = std::make_unique<weir_allocator_t>(std::move(config));
    install(allocator->allocator);
    if (c10d) {
      the_fences = new CollectiveFences(*installed());
    }
    the_allocator = allocator.release();
  });
}

// CUDAGraph.capture_begin or capture_end raised an error in this thread: Backend's.
weir_status_t weir_torch_close_failed_captures() {
  return c::guarded([] {
    Backend* const backend = installed();
    if (backend != nullptr) backend->close_failed_captures();
  });
}

weir_status_t weir_torch_fence(void* const* pointers, std::size_t count, int32_t device,
                               void* stream) {
  return c::guarded([&] {
    backend_for("weir.fence")
        .fence(std::span(pointers, count), static_cast<c10::DeviceIndex>(device),
               static_cast<cudaStream_t>(stream));
  });
}

// For weir_c10d_enable(). Null before weir_torch_enable(), and with WEIR_C10D=0.
void* weir_torch_collective_memory() { return static_cast<CollectiveMemory*>(the_fences); }

// Operations that got a fence so far, on all devices.
uint64_t weir_torch_fenced_operations() { return the_fences == nullptr ? 0 : the_fences->fenced(); }

}  // extern "C"

}  // namespace weir::pytorch
