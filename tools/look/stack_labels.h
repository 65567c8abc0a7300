// SPDX-License-Identifier: Apache-2.0
// What stacks are called in legends: in short, and so that those that are named together are told
// apart. page/stack_names.js has the same for pages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "look/symbols.h"

namespace weir {

// For each of `stacks` (indices into ReadableStacks::stacks): function and place, or, where two
// have the same, the function with as many of its callers as tell them apart.
std::vector<std::string> stack_labels(const ReadableStacks& readable,
                                      const std::vector<std::uint32_t>& stacks);

}  // namespace weir
