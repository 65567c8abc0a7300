// SPDX-License-Identifier: Apache-2.0
// A device heap's statistics as PyTorch's.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include "weir/statistics.h"

namespace weir::pytorch {

// What PyTorch counts apart from the heap.
struct Counts {
  std::int64_t retries = 0, out_of_memory = 0;
};

// PyTorch has a pool of small blocks and one of large ones; Weir has one, which stands under
// "large_pool" as well as under "all". "Segments" are pages; "inactive split" is what is free in
// pages that are in use. `before`: what resetAccumulatedStats() has set aside.
c10::CachingDeviceAllocator::DeviceStats device_stats(const Statistics& now,
                                                      const Statistics& before,
                                                      const Counts& counts);

}  // namespace weir::pytorch
