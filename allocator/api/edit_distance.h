// SPDX-License-Identifier: Apache-2.0
// How far a misspelled name is from a known one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

// Letters to insert, to drop, to change, or neighbours to swap, until `a` is `b`. Source: the
// optimal string alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The one of `names` that `word` is likely a misspelling of: at most a third of its letters are
// wrong. Empty: none is.
std::string_view nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace weir
