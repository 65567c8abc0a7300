// SPDX-License-Identifier: Apache-2.0
// What the pictures have in common.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/recording.h"
#include "weir/types.h"

namespace weir {

// `text` as XML can hold it.
std::string xml(std::string_view text);

// The innermost frame of a stack that is known, or "".
std::string innermost(const Recording& recording, std::uint32_t stack);

// The program's name, or the file's without its folders.
std::string title_of(const Recording& recording);

// A distance between ticks, such that there are at most `most` of them: 1, 2 or 5 times a power of
// ten, or a power of two.
std::int64_t decimal_step(std::int64_t range, int most);
std::uint64_t binary_step(std::uint64_t range, int most);

// The beginning of a picture of this size, with its title; "</svg>" ends it.
std::string svg_begin(double width, double height, std::string_view title);
// Names of colours, side by side from (x, y) on, in lines that end at `right`.
std::string legend(double x, double y, double right,
                   const std::vector<std::pair<std::string, std::string>>& names);

}  // namespace weir
