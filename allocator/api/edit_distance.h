// SPDX-License-Identifier: Apache-2.0
// How far a misspelled name is from a known one.
#pragma once

#include <cstddef>
#include <string_view>

namespace weir {

// Letters to insert, to drop, to change, or neighbours to swap, until `a` is `b`. Source: the
// optimal string alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace weir
