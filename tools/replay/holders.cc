// SPDX-License-Identifier: Apache-2.0
#include "replay/holders.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "replay/units.h"

namespace weir {
namespace {

constexpr std::size_t kMostSizes = 5;

struct Sum {
  std::uint64_t blocks = 0;
  Bytes bytes;
  void add(const BlockInfo& block) {
    ++blocks;
    bytes += block.bytes;
  }
};

// The entries of `sums`, most bytes first; the lower key first where they are equal.
template <class Key>
std::vector<std::pair<Key, Sum>> largest_first(const std::map<Key, Sum>& sums) {
  std::vector<std::pair<Key, Sum>> sorted(sums.begin(), sums.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  return sorted;
}

// By the number that the trace gives it, and the device's, which errors name.
std::string stream_name(std::uint64_t id, const Trace& trace, std::span<const Stream> streams) {
  for (std::size_t i = 0; i < trace.streams.size() && i < streams.size(); ++i) {
    if (streams[i].id == id) {
      return fmt::format("stream {} of the trace ({} on the device)", trace.streams[i], id);
    }
  }
  return fmt::format("stream {} on the device", id);
}

}  // namespace

std::vector<std::string> describe_holders(const HeapSnapshot& snapshot, const Trace& trace,
                                          std::span<const Stream> streams) {
  std::map<std::uint64_t, Sum> by_stream;
  std::map<Bytes, Sum> by_size;
  Bytes reserved, used, live;
  for (const PageInfo& page : snapshot.pages) {
    reserved += page.bytes;
    used += page.used;
  }
  for (const BlockInfo& block : snapshot.blocks) {
    live += block.bytes;
    by_stream[block.stream].add(block);
    by_size[block.bytes].add(block);
  }
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} reserved: {} in {}, {} free", in_words(reserved), in_words(live),
                              counted(snapshot.blocks.size(), "live block"),
                              in_words(reserved - std::min(used, reserved))));
  for (const auto& [id, sum] : largest_first(by_stream)) {
    lines.push_back(fmt::format("{}: {} in {}", stream_name(id, trace, streams),
                                in_words(sum.bytes), counted(sum.blocks, "block")));
  }
  const auto sizes = largest_first(by_size);
  for (std::size_t i = 0; i < sizes.size() && i < kMostSizes; ++i) {
    lines.push_back(fmt::format("{} of {}: {}", counted(sizes[i].second.blocks, "block"),
                                in_words(sizes[i].first), in_words(sizes[i].second.bytes)));
  }
  if (sizes.size() > kMostSizes) {
    lines.push_back(fmt::format("and {} more", counted(sizes.size() - kMostSizes, "size")));
  }
  return lines;
}

}  // namespace weir
