// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/torch_context.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <stdexcept>
#include <string>

#include "bench/peers/cuda_check.h"
#include "weir/weir.h"

// libc10_cuda exports it, and no header declares it: PyTorch, too, does so where it calls it.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*answer)(DeviceIndex));
}

namespace weir::peers {
namespace {

using GetState = CUresult (*)(CUdevice, unsigned* flags, int* active);

// From the runtime that is loaded: the program has no link to the driver.
GetState find_get_state() {
  constexpr unsigned kSince = 7000;  // CUDA 7.0
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  check_cuda("cudaGetDriverEntryPointByVersion",
             cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, kSince,
                                              cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    throw std::runtime_error("the driver has no cuDevicePrimaryCtxGetState");
  }
  return reinterpret_cast<GetState>(function);
}

bool has_primary_context(c10::DeviceIndex device) {
  static const GetState get_state = find_get_state();
  unsigned flags = 0;
  int active = 0;
  const CUresult result = get_state(device, &flags, &active);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuDevicePrimaryCtxGetState: CUresult " + std::to_string(result));
  }
  return active != 0;
}

// Of the library that is PyTorch's allocator.
decltype(&weir_driver_calls) the_driver_calls = nullptr;
weir_allocator_t* (*the_allocator)() = nullptr;

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

void set_torch_context_hook(bool gpu) {
  const auto always = +[](c10::DeviceIndex) { return true; };
  c10::cuda::_internal::setHasPrimaryContext(gpu ? &has_primary_context : always);
  // Asked once here, where what is amiss can be reported.
  static_cast<void>(c10::cuda::hasPrimaryContext(0));
}

void use_weir_in_torch(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  int (*enable)() = nullptr;
  const char* (*error)() = nullptr;
  find(handle, "weir_torch_enable", enable);
  find(handle, "weir_last_error", error);
  find(handle, "weir_torch_allocator", the_allocator);
  find(handle, "weir_driver_calls", the_driver_calls);
  if (enable == nullptr || error == nullptr || the_allocator == nullptr ||
      the_driver_calls == nullptr) {
    throw std::runtime_error(library + " is not Weir's library for PyTorch");
  }
  if (enable() != 0) throw std::runtime_error(library + ": " + error());
}

DriverSplit weir_driver_split() {
  std::array<weir_driver_call_t, 64> calls{};
  std::size_t kinds = 0;
  if (the_driver_calls(the_allocator(), 0, calls.data(), calls.size(), &kinds) != WEIR_OK) {
    throw std::runtime_error("weir_driver_calls() failed");
  }
  DriverSplit split;
  for (std::size_t i = 0; i < kinds; ++i) {
    split[calls[i].name] = {calls[i].calls, calls[i].nanoseconds};
  }
  return split;
}

}  // namespace weir::peers
