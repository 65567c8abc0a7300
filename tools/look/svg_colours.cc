// SPDX-License-Identifier: Apache-2.0
#include "look/svg_colours.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "look/stack_labels.h"
#include "look/streams.h"
#include "look/symbols.h"

namespace weir {
namespace {

// Colours that people who see few colours tell apart. Source: Okabe and Ito, "Color Universal
// Design", 2008.
constexpr std::array<std::string_view, 8> kPalette = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                      "#56b4e9", "#d55e00", "#f0e442", "#999999"};
constexpr std::string_view kOther = kPalette.back();
struct SizeClass {
  std::string_view name;
  std::uint64_t most;
  std::string_view colour;  // of the scale "viridis"
};
constexpr std::array<SizeClass, 7> kSizes = {{
    {"up to 64 KiB", std::uint64_t{1} << 16, "#481d6f"},
    {"up to 1 MiB", std::uint64_t{1} << 20, "#3e4c8a"},
    {"up to 8 MiB", std::uint64_t{1} << 23, "#2c738e"},
    {"up to 32 MiB", std::uint64_t{1} << 25, "#1f978b"},
    {"up to 128 MiB", std::uint64_t{1} << 27, "#3bbb75"},
    {"up to 512 MiB", std::uint64_t{1} << 29, "#8ed645"},
    {"over 512 MiB", UINT64_MAX, "#f1e51d"},
}};

std::string lighter(std::string_view colour, double share) {
  std::string text = "#";
  for (std::size_t i = 1; i < colour.size(); i += 2) {
    int part = 0;
    std::from_chars(colour.data() + i, colour.data() + i + 2, part, 16);
    text += fmt::format("{:02x}", static_cast<int>(std::lround(part + (255 - part) * share)));
  }
  return text;
}

// The ninth thing has the first colour again, lighter.
std::string category_colour(std::size_t index) {
  const auto round = static_cast<double>(index / kPalette.size());
  return lighter(kPalette[index % kPalette.size()], std::min(0.6, 0.3 * round));
}

}  // namespace

BlockColours::BlockColours(const Recording& recording, const BlockLifetimes& lifetimes,
                           const std::vector<std::uint32_t>& peak)
    : recording_(recording), lifetimes_(lifetimes) {
  for (const BlockLifetime& lifetime : lifetimes.blocks) {
    const auto at = std::lower_bound(streams_.begin(), streams_.end(), lifetime.stream);
    if (at == streams_.end() || *at != lifetime.stream) streams_.insert(at, lifetime.stream);
  }
  by_ = streams_.size() > 1 ? By::stream : recording.stacks.size() > 1 ? By::stack : By::size;
  if (by_ == By::stream) add_streams();
  if (by_ == By::stack) add_stacks(peak);
  if (by_ == By::size) add_sizes();
}

void BlockColours::add_streams() {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    classes_.emplace_back(stream_title(streams_[i]), category_colour(i));
  }
}

void BlockColours::add_stacks(const std::vector<std::uint32_t>& peak) {
  const ReadableStacks readable = readable_stacks(recording_);
  const auto number_of = [&](std::uint32_t stack) {
    return stack < readable.number.size() ? readable.number[stack] : readable.number.front();
  };
  std::vector<std::uint64_t> bytes(readable.stacks.size());
  for (const std::uint32_t block : peak) {
    bytes[number_of(lifetimes_.blocks[block].stack)] += lifetimes_.blocks[block].bytes.count;
  }
  std::vector<std::uint32_t> order(bytes.size());
  std::iota(order.begin(), order.end(), 0U);
  std::erase_if(order, [&](std::uint32_t stack) {
    return bytes[stack] == 0 || readable.stacks[stack].empty();
  });
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes[a] > bytes[b]; });
  order.resize(std::min(order.size(), kPalette.size() - 1));
  for (const std::uint32_t stack : readable.number) {
    const auto at = std::find(order.begin(), order.end(), stack);
    class_of_stack_.push_back(static_cast<std::uint32_t>(at - order.begin()));
  }
  for (std::string& label : stack_labels(readable, order))
    classes_.emplace_back(std::move(label), kPalette[classes_.size()]);
  classes_.emplace_back("other stacks", kOther);
}

void BlockColours::add_sizes() {
  for (const SizeClass& size : kSizes) classes_.emplace_back(size.name, size.colour);
}

std::size_t BlockColours::class_of(std::uint32_t block) const {
  const BlockLifetime& lifetime = lifetimes_.blocks[block];
  if (by_ == By::stack)
    return class_of_stack_[lifetime.stack < class_of_stack_.size() ? lifetime.stack : 0];
  if (by_ == By::stream) {
    const auto at = std::lower_bound(streams_.begin(), streams_.end(), lifetime.stream);
    return static_cast<std::size_t>(at - streams_.begin());
  }
  const auto* const at = std::find_if(kSizes.begin(), kSizes.end(), [&](const SizeClass& size) {
    return lifetime.bytes.count <= size.most;
  });
  return static_cast<std::size_t>(at - kSizes.begin());
}

double BlockColours::opacity_of(std::uint32_t block) const {
  constexpr std::array<double, 4> kShades = {1, 0.84, 0.7, 0.92};
  constexpr std::array<double, 4> kSizeShades = {1, 0.92, 0.86, 0.96};  // or sizes look alike
  const std::uint32_t shade = (block * 0x9e3779b1U) >> 30;
  return by_ == By::size ? kSizeShades[shade] : kShades[shade];
}

}  // namespace weir
