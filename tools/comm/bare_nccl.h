// SPDX-License-Identifier: Apache-2.0
// NCCL as a program without Weir calls it.
#pragma once

#include <span>
#include <vector>

#include "weir/comm/nccl.h"

namespace weir {

// Operations that are queued as one: alone, or as a group of NCCL's.
using OperationGroup = std::vector<Operation>;

// Queues groups[0], groups[1], ..., `times` in all, and again from the first where there are fewer.
// Calls the functions of the loaded library by their pointers, with nothing of Weir's between: no
// virtual call, no exchange of the thread's capture mode, no lock. (On simulated ranks there is no
// library: it calls `nccl`.) The GPU of `comm` is the thread's current one. No sum is
// premultiplied. Errors: device.
Status queue_bare(Nccl& nccl, CommHandle comm, std::span<const OperationGroup> groups, int times,
                  Stream stream);

}  // namespace weir
