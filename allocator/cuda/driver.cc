// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <dlfcn.h>

#include <string>

namespace weir::cuda {
namespace {

constexpr const char* kRemedy =
    "; install an NVIDIA driver for CUDA 12.4 or later, or use the simulated device";

Error unavailable(const std::string& why) {
  return {ErrorCode::unavailable, "CUDA is not available: " + why + kRemedy};
}

Result<Driver> load() {
  // Never closed: the driver can't be unloaded while the process may still use it.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return unavailable(why != nullptr ? why : "libcuda.so.1 can't be loaded");
  }
  Driver driver;
  driver.get_proc_address =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
  if (driver.get_proc_address == nullptr) {
    return unavailable("libcuda.so.1 is too old: it lacks cuGetProcAddress_v2");
  }
#define WEIR_DRIVER_LOAD(name, version)                                                 \
  driver.name = reinterpret_cast<PFN_##name##_v##version>(driver.find(#name, version)); \
  if (driver.name == nullptr) return unavailable("libcuda.so.1 is too old: it lacks " #name);
  WEIR_DRIVER_CALLS(WEIR_DRIVER_LOAD)
#undef WEIR_DRIVER_LOAD
  return driver;
}

}  // namespace

void* Driver::find(const char* name, int version) const {
  void* entry = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result =
      get_proc_address(name, &entry, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
  return result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS ? entry : nullptr;
}

Result<const Driver*> Driver::get() {
  static const Result<Driver> driver = load();
  if (!driver.ok()) return driver.error();
  static const CUresult initialised = driver->cuInit(0);
  if (initialised != CUDA_SUCCESS) {
    return unavailable(driver->error("cuInit", initialised).message());
  }
  return &*driver;
}

Error Driver::error(std::string_view call, CUresult result) const {
  const char* name = nullptr;
  const char* meaning = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &meaning);
  std::string message(call);
  message += ": ";
  message += name != nullptr ? name : std::to_string(static_cast<int>(result));
  if (meaning != nullptr) message.append(" (").append(meaning).append(")");
  const bool capture = result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                       result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  return {capture ? ErrorCode::capture : ErrorCode::device, std::move(message), result};
}

}  // namespace weir::cuda
