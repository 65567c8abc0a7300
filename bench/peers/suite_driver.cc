// SPDX-License-Identifier: Apache-2.0
// The driver's own allocators, for `weir bench`: its pool, or cudaMalloc alone.
#include <string_view>

#include "bench/peers/cuda_malloc_peer.h"
#include "bench/peers/driver_peer.h"
#include "bench/peers/suite_peer.h"

extern "C" __attribute__((visibility("default"))) const weir_suite_functions*
weir_suite_allocator_called(const char* name) {
  using namespace weir::peers;
  if (std::string_view(name) == "cuda-malloc") return suite_functions<CudaMalloc>(name);
  return suite_functions<DriverPool>(name);
}
