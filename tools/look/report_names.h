// SPDX-License-Identifier: Apache-2.0
// Pools, sizes and stacks, as a report calls them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weir/recording.h"

namespace weir {

// "3", or "none" for memory of no pool.
std::string pool_name(std::uint64_t pool);

// The largest size of the class that `bytes` is in: a power of two, 512 at least.
Bytes size_class(Bytes bytes);
// "(1 MiB, 2 MiB]" as "1 - 2 MiB"; the smallest as "up to 512 B".
std::string size_class_name(Bytes largest);

// The innermost of a stack's calls in one line, as far as main(); "unknown" for an empty stack.
std::string place_text(const std::vector<std::string>& calls);

}  // namespace weir
