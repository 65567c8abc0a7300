// SPDX-License-Identifier: Apache-2.0
// What PyTorch's CUDA library asks of the large one that is not linked here (libtorch_cuda); and
// which allocator it has.
#pragma once

#include <string>

#include "bench/peers/peer.h"

namespace weir::peers {

// Lets libc10_cuda know whether a device's primary context exists; it asks whenever a device is
// made current again, and ends the process without an answer. The same call of the driver answers
// as in a program with all of PyTorch, so it costs the same. Call it before PyTorch's allocator is
// used. Without a GPU the answer is always yes.
void set_torch_context_hook(bool gpu);

// Makes Weir PyTorch's allocator: `library` is libweir_torch.so, built for this PyTorch. Call it
// before PyTorch's allocator is used. Throws std::runtime_error.
void use_weir_in_torch(const std::string& library);

// Weir's, on device 0, once it is PyTorch's allocator. The host's time needs WEIR_TIME_DRIVER=1.
// Throws std::runtime_error.
DriverSplit weir_driver_split();

}  // namespace weir::peers
