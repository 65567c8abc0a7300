// SPDX-License-Identifier: Apache-2.0
// NCCL as a program without Weir calls it.
#pragma once

#include "weir/comm/nccl.h"

namespace weir {

// Queues the operation so many times. Calls the function of the loaded library by its pointer, with
// nothing of Weir's between: no virtual call, no exchange of the thread's capture mode, no lock.
// (On simulated ranks there is no library: it calls `nccl`.) The GPU of `comm` is the thread's
// current one. Errors: device.
Status queue_bare(Nccl& nccl, CommHandle comm, const Operation& operation, int times,
                  Stream stream);

}  // namespace weir
