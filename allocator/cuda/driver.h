// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's entry points, loaded at run time.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string_view>

#include "weir/result.h"

#if CUDA_VERSION < 12040
#error "Weir needs the headers of CUDA toolkit 12.4 or later"
#endif

namespace weir::cuda {

// Each entry point, and the CUDA version that brought the form of it that Weir calls.
#define WEIR_DRIVER_CALLS(X)                  \
  X(cuInit, 2000)                             \
  X(cuGetErrorName, 6000)                     \
  X(cuGetErrorString, 6000)                   \
  X(cuDeviceGet, 2000)                        \
  X(cuDeviceGetCount, 2000)                   \
  X(cuDeviceGetName, 2000)                    \
  X(cuDeviceGetAttribute, 2000)               \
  X(cuDevicePrimaryCtxRetain, 7000)           \
  X(cuDevicePrimaryCtxRelease, 11000)         \
  X(cuCtxGetCurrent, 4000)                    \
  X(cuCtxGetDevice, 2000)                     \
  X(cuCtxPushCurrent, 4000)                   \
  X(cuCtxPopCurrent, 4000)                    \
  X(cuMemGetInfo, 3020)                       \
  X(cuMemAlloc, 3020)                         \
  X(cuMemFree, 3020)                          \
  X(cuMemGetAllocationGranularity, 10020)     \
  X(cuMemAddressReserve, 10020)               \
  X(cuMemAddressFree, 10020)                  \
  X(cuMemCreate, 10020)                       \
  X(cuMemRelease, 10020)                      \
  X(cuMemMap, 10020)                          \
  X(cuMemUnmap, 10020)                        \
  X(cuMemSetAccess, 10020)                    \
  X(cuMemExportToShareableHandle, 10020)      \
  X(cuMemImportFromShareableHandle, 10020)    \
  X(cuIpcGetMemHandle, 4010)                  \
  X(cuIpcOpenMemHandle, 11000)                \
  X(cuIpcCloseMemHandle, 4010)                \
  X(cuMemcpyDtoDAsync, 3020)                  \
  X(cuMemcpyHtoDAsync, 3020)                  \
  X(cuMemcpyDtoHAsync, 3020)                  \
  X(cuMemsetD8Async, 3020)                    \
  X(cuMemHostRegister, 6050)                  \
  X(cuMemHostUnregister, 4000)                \
  X(cuCtxGetStreamPriorityRange, 5050)        \
  X(cuStreamCreateWithPriority, 5050)         \
  X(cuStreamDestroy, 4000)                    \
  X(cuStreamGetId, 12000)                     \
  X(cuEventCreate, 2000)                      \
  X(cuEventDestroy, 4000)                     \
  X(cuEventRecord, 2000)                      \
  X(cuEventQuery, 2000)                       \
  X(cuEventSynchronize, 2000)                 \
  X(cuStreamWaitEvent, 3020)                  \
  X(cuThreadExchangeStreamCaptureMode, 10010) \
  X(cuStreamGetCaptureInfo, 12030)            \
  X(cuStreamUpdateCaptureDependencies, 12030) \
  X(cuStreamBeginCapture, 10010)              \
  X(cuStreamEndCapture, 10000)                \
  X(cuGraphNodeGetDependencies, 12030)        \
  X(cuUserObjectCreate, 11030)                \
  X(cuUserObjectRelease, 11030)               \
  X(cuGraphRetainUserObject, 11030)           \
  X(cuGraphInstantiateWithFlags, 11040)       \
  X(cuGraphLaunch, 10000)                     \
  X(cuGraphExecDestroy, 10000)                \
  X(cuGraphDestroy, 10000)

// Calls read driver.cuMemCreate(...). (cuda.h may rename cuX to cuX_v2 by macro; members follow.)
struct Driver {
#define WEIR_DRIVER_MEMBER(name, version) PFN_##name##_v##version name = nullptr;
  WEIR_DRIVER_CALLS(WEIR_DRIVER_MEMBER)
#undef WEIR_DRIVER_MEMBER

  // The entry point called `name` in the form of `version`; null if the driver has none. For what
  // is not in the list above.
  void* find(const char* name, int version) const;

  // Loads and initialises the driver, at the first call. Errors: unavailable.
  static Result<const Driver*> get();

  // A failed call as an error: ErrorCode::capture for the driver's capture errors, else device.
  Error error(std::string_view call, CUresult result) const;
  Status check(std::string_view call, CUresult result) const {
    if (result == CUDA_SUCCESS) return {};
    return error(call, result);
  }

  PFN_cuGetProcAddress_v12000 get_proc_address = nullptr;
};

// While it lives, `context` is current in this thread. Nothing happens where it is already.
class ContextScope {
 public:
  ContextScope(const Driver& driver, CUcontext context) : driver_(driver) {
    CUcontext current = nullptr;
    if (driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return;
    pushed_ = driver.cuCtxPushCurrent(context) == CUDA_SUCCESS;
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
  }

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// While it lives, this thread may make calls that would break a capture that is going on.
class RelaxedCaptureScope {
 public:
  explicit RelaxedCaptureScope(const Driver& driver) : driver_(driver) {
    driver.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;
  ~RelaxedCaptureScope() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace weir::cuda
