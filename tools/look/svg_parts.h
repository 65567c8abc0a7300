// What the pictures have in common.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/recording.h"
#include "weir/types.h"

namespace weir {

// Colours that people who see few colours tell apart. Source: Okabe and Ito, "Color Universal
// Design", 2008.
inline constexpr std::array<std::string_view, 7> kColours = {
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"};

// Where a stream is among `streams`, for kColours.
std::size_t colour_of(std::uint64_t stream, const std::vector<std::uint64_t>& streams);

// `text` as XML can hold it.
std::string xml(std::string_view text);

// The innermost frame of a stack that is known, or "".
std::string innermost(const Recording& recording, std::uint32_t stack);

// A distance between ticks, such that there are at most `most` of them: 1, 2 or 5 times a power of
// ten, or a power of two.
std::int64_t decimal_step(std::int64_t range, int most);
std::uint64_t binary_step(std::uint64_t range, int most);

// The beginning of a picture of this size, with its title; "</svg>" ends it.
std::string svg_begin(double width, double height, std::string_view title);
// Names of colours, side by side from (x, y) on.
std::string legend(double x, double y,
                   const std::vector<std::pair<std::string, std::string>>& names);
// The streams' colours, for legend(): the first few.
std::vector<std::pair<std::string, std::string>> stream_names(
    const std::vector<std::uint64_t>& streams);

}  // namespace weir
