// SPDX-License-Identifier: Apache-2.0
// All work of one context of the driver's, whoever queued it: events of it, and waits for it.
#pragma once

#include <mutex>
#include <string>

#include "cuda/driver.h"
#include "weir/result.h"

namespace weir::cuda {

// A device's primary context is there while this lives.
class RetainedContext {
 public:
  // Takes over one cuDevicePrimaryCtxRetain() of `device`.
  RetainedContext(const Driver& driver, CUdevice device) : driver_(driver), device_(device) {}
  RetainedContext(const RetainedContext&) = delete;
  RetainedContext& operator=(const RetainedContext&) = delete;
  // At the end of the process the driver may be gone already; then so is the context.
  ~RetainedContext() { driver_.cuDevicePrimaryCtxRelease(device_); }

 private:
  const Driver& driver_;
  const CUdevice device_;
};

// Threads: as Device, but for join().
class ContextWork {
 public:
  // Both must outlive this. `ordinal`: of the device, for messages.
  ContextWork(const Driver& driver, CUcontext context, int ordinal)
      : driver_(driver), context_(context), ordinal_(ordinal) {}
  ContextWork(const ContextWork&) = delete;
  ContextWork& operator=(const ContextWork&) = delete;
  ~ContextWork();

  CUcontext context() const { return context_; }

  // Errors: unavailable (a driver before CUDA 12.5); capture (a blocking stream of the context is
  // being captured, which the question does not break; of other streams it says nothing).
  Status may_record() const;
  // `event`, of this context, marks all work queued so far, where may_record(). Errors: capture (a
  // stream was captured, and its capture is broken); device.
  Status record(CUevent event) const;
  // `stream`, of whatever device, waits for all work queued so far. One thread at a time. Errors:
  // as record().
  Status join(CUstream stream);

  // The host waits for all work queued so far, and breaks no capture. Errors: out_of_memory, unless
  // prepare_to_synchronize() has taken the little memory that this needs; device.
  Status synchronize();
  Status prepare_to_synchronize();

 private:
  Status have_spare();
  std::string call(const char* name) const;

  const Driver& driver_;
  const CUcontext context_;
  const int ordinal_;
  // cuCtxRecordEvent; null: the driver is older than CUDA 12.5.
  using RecordContext = CUresult(CUDAAPI*)(CUcontext, CUevent);
  const RecordContext record_context_ =
      reinterpret_cast<RecordContext>(driver_.find("cuCtxRecordEvent", 12050));
  CUevent joined_ = nullptr;  // join()'s, once there was one
  std::mutex spare_mutex_;
  CUdeviceptr spare_ = 0;  // guarded by spare_mutex_; a small block, to be freed; 0: none
};

}  // namespace weir::cuda
