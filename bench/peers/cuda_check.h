// SPDX-License-Identifier: Apache-2.0
// Turns a refusal of the CUDA runtime into an exception.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace weir::peers {

[[noreturn]] inline void raise_cuda(const char* call, cudaError_t error) {
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ")");
}

// Small, so that it costs nothing where the call succeeds.
inline void check_cuda(const char* call, cudaError_t result) {
  if (result != cudaSuccess) [[unlikely]]
    raise_cuda(call, result);
}

}  // namespace weir::peers
