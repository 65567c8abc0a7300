// SPDX-License-Identifier: Apache-2.0
// The pools that the functions of pool_entry.cc are about. Those functions are in both libraries of
// the Python package, the backend and the one for plugged-in allocators; each defines this.
#pragma once

#include "torch/pools.h"

namespace weir::pytorch {

// Those of one device. Errors: Exception (`what` names the call), where Weir is not PyTorch's
// allocator yet.
Pools& pools_of(int device, const char* what);

}  // namespace weir::pytorch
