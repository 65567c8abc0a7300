// SPDX-License-Identifier: Apache-2.0
// What holds a heap's memory, in words.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "replay/trace.h"
#include "weir/device_heap.h"

namespace weir {

// Lines, the largest holder first: how much is reserved, in use and idle; the live blocks of each
// stream; and the sizes that live blocks take most memory with. `streams`: of the trace's streams,
// in its order.
std::vector<std::string> describe_holders(const HeapSnapshot& snapshot, const Trace& trace,
                                          std::span<const Stream> streams);

}  // namespace weir
