// SPDX-License-Identifier: Apache-2.0
#include "cuda/context_work.h"

#include <cstddef>

namespace weir::cuda {

ContextWork::~ContextWork() {
  if (spare_ == 0 && joined_ == nullptr) return;
  const ContextScope scope(driver_, context_);
  const RelaxedCaptureScope relaxed(driver_);
  if (spare_ != 0) (void)driver_.cuMemFree(spare_);
  if (joined_ != nullptr) (void)driver_.cuEventDestroy(joined_);
}

std::string ContextWork::call(const char* name) const {
  return std::string(name) + " of device " + std::to_string(ordinal_);
}

// The captures of blocking streams show on the legacy default stream. Source: the CUDA runtime API,
// cudaStreamIsCapturing.
Status ContextWork::may_record() const {
  if (record_context_ == nullptr) {
    return Error(ErrorCode::unavailable,
                 "cuCtxRecordEvent: the driver has no such call; it came with CUDA 12.5");
  }
  const ContextScope scope(driver_, context_);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult implicit = driver_.cuStreamGetCaptureInfo(CU_STREAM_LEGACY, &status, nullptr,
                                                           nullptr, nullptr, nullptr, nullptr);
  if (implicit != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return {};
  return driver_.error(call("cuCtxRecordEvent, not called: cuStreamGetCaptureInfo"), implicit);
}

Status ContextWork::record(CUevent event) const {
  const CUresult recorded = record_context_(context_, event);
  if (recorded == CUDA_SUCCESS) [[likely]]
    return {};
  return driver_.error(call("cuCtxRecordEvent"), recorded);
}

Status ContextWork::join(CUstream stream) {
  if (joined_ == nullptr) {
    const ContextScope scope(driver_, context_);
    const CUresult made = driver_.cuEventCreate(&joined_, CU_EVENT_DISABLE_TIMING);
    if (made != CUDA_SUCCESS) return driver_.error(call("cuEventCreate"), made);
  }
  if (Status recorded = record(joined_); !recorded) return recorded;
  return driver_.check("cuStreamWaitEvent", driver_.cuStreamWaitEvent(stream, joined_, 0));
}

// cuMemFree waits for all work of the context. Nothing else does that breaks no capture.
Status ContextWork::synchronize() {
  const std::lock_guard lock(spare_mutex_);
  const ContextScope scope(driver_, context_);
  const RelaxedCaptureScope relaxed(driver_);
  if (Status made = have_spare(); !made) return made;
  const CUresult freed = driver_.cuMemFree(spare_);
  if (freed != CUDA_SUCCESS) return driver_.error(call("cuMemFree"), freed);
  spare_ = 0;
  (void)have_spare();  // while there is surely room for it
  return {};
}

Status ContextWork::prepare_to_synchronize() {
  const std::lock_guard lock(spare_mutex_);
  const ContextScope scope(driver_, context_);
  const RelaxedCaptureScope relaxed(driver_);
  return have_spare();
}

Status ContextWork::have_spare() {
  constexpr std::size_t kSpareBytes = 256;
  if (spare_ != 0) return {};
  const CUresult made = driver_.cuMemAlloc(&spare_, kSpareBytes);
  if (made == CUDA_SUCCESS) return {};
  Error error = driver_.error(call("cuMemAlloc"), made);
  if (made != CUDA_ERROR_OUT_OF_MEMORY) return error;
  return Error(ErrorCode::out_of_memory,
               error.message() +
                   ": the device has no 256 bytes left, which waiting for all of its "
                   "work takes");
}

}  // namespace weir::cuda
