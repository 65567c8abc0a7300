// SPDX-License-Identifier: Apache-2.0
// What the Python package calls of c10d's operations, by ctypes, where PyTorch has c10d.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "api/c_status.h"
#include "torch/c10d/operations.h"

namespace {

using weir::pytorch::Operations;

// As ProcessGroup._id() in Python gives it.
const c10d::ProcessGroup* group_of(std::int64_t id) {
  return reinterpret_cast<const c10d::ProcessGroup*>(static_cast<std::intptr_t>(id));
}

// What weir_c10d_relax() returns if it has changed nothing.
constexpr int kUnchanged = -1;

}  // namespace

extern "C" {

// `memory`: what weir_torch_collective_memory() gave.
weir_status_t weir_c10d_enable(void* memory) {
  return weir::c::guarded(
      [&] { Operations::enable(*static_cast<weir::pytorch::CollectiveMemory*>(memory)); });
}

void weir_c10d_coalescing_begins(std::int64_t group) {
  if (Operations* const operations = Operations::in_use()) {
    operations->coalescing_begins(group_of(group));
  }
}

// The end of a coalesced operation may connect its ranks. If it is one of NCCL's, the thread's
// capture mode is relaxed until weir_c10d_restore() has what this returns; else nothing happens.
int weir_c10d_relax(std::int64_t group) {
  Operations* const operations = Operations::in_use();
  if (operations == nullptr || !operations->has_coalesced(group_of(group))) return kUnchanged;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  return cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess ? mode : kUnchanged;
}
void weir_c10d_restore(int before) {
  if (before == kUnchanged) return;
  auto mode = static_cast<cudaStreamCaptureMode>(before);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

void weir_c10d_enter_nccl_group() { Operations::enter_nccl_group(); }
void weir_c10d_leave_nccl_group() { Operations::leave_nccl_group(); }

}  // extern "C"
