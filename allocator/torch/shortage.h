// SPDX-License-Identifier: Apache-2.0
// What torch.OutOfMemoryError says.
//
// Begins with PyTorch's own words, which programs look for; then what holds the memory, and what
// would help. None of PyTorch's headers is needed.
#pragma once

#include <functional>
#include <string>

#include "torch/pools.h"
#include "weir/device.h"
#include "weir/device_heap.h"

namespace weir::pytorch {

struct Shortage {
  int device = 0;
  Bytes asked;
  MemoryInfo memory;  // of the device
  Bytes limit;        // most that the heap may hold; zero: none
  ReusePolicy reuse = ReusePolicy::balanced;
  HeapSnapshot held;
  std::function<PoolId(std::uint64_t)> pool_of;  // by GraphPool::id(); {0, 0}: PyTorch's no more
  Bytes of_other_sources;                        // in pools whose memory is not the heap's
  std::string error;                             // the heap's own
};

std::string message_of(const Shortage& shortage);

// Requests of more than this are refused before anything is tried, in PyTorch's words.
inline constexpr Bytes kMostAsked{(std::uint64_t{1} << 60) - 1};
inline constexpr const char* kAskedForTooMuch =
    "CUDA out of memory. Tried to allocate more than 1EB memory.";
// What goes before message_of() where PyTorch's setting throw_on_cudamalloc_oom refuses.
inline constexpr const char* kRejected =
    "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
    "per_process_memory_fraction limit. ";

}  // namespace weir::pytorch
