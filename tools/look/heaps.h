// SPDX-License-Identifier: Apache-2.0
// The stream and the pool that each heap of a recording serves.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "weir/recording.h"

namespace weir {

struct HeapServes {
  std::uint64_t stream = 0, pool = 0;
};

// By HeapId: what its `heap_open` says last; of a heap without one, what its first block says.
std::unordered_map<std::uint32_t, HeapServes> heaps_of(const Recording& recording);

}  // namespace weir
