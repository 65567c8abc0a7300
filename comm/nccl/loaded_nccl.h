// SPDX-License-Identifier: Apache-2.0
// One GPU's NCCL, and what others need who call the library by themselves.
#pragma once

#include <memory>

#include "comm/nccl/library.h"
#include "cuda/driver.h"
#include "weir/comm/nccl.h"

namespace weir {

// `nccl` and `driver` outlive it. It releases the primary context of `device`, which `context` is.
std::unique_ptr<Nccl> make_loaded_nccl(const NcclLibrary& nccl, const cuda::Driver& driver,
                                       CUdevice device, CUcontext context);

// The library behind it; null: it is none of the above.
const NcclLibrary* library_of(const Nccl& nccl);
inline ncclComm_t comm_of(CommHandle comm) {
  return static_cast<ncclComm_t>(Address{comm.value}.pointer());
}

}  // namespace weir
