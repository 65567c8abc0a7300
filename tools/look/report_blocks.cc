// SPDX-License-Identifier: Apache-2.0
#include "look/report_blocks.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

#include "look/streams.h"

namespace weir {
namespace {

// Without marks that repeat, a recording has so many parts, with as many allocations each.
constexpr std::size_t kParts = 8;
constexpr std::size_t kFewestPhases = 4;

// "iteration 3" and "iteration 4" are the same mark.
std::string without_numbers(const std::string& text) {
  std::string kept;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) kept += c;
  }
  return kept;
}

// When the repeated phases of the program began, if its marks say so.
std::vector<Nanoseconds> phases_of(const Recording& recording) {
  std::map<std::string, std::vector<Nanoseconds>> times;
  for (const RecordedMark& mark : recording.marks) {
    if (mark.text.starts_with("driver calls")) continue;  // Weir's own, where a ring was written
    times[without_numbers(mark.text)].push_back(mark.time);
  }
  std::vector<Nanoseconds> most;
  for (const auto& [text, at] : times) {
    if (at.size() > most.size()) most = at;
  }
  if (most.size() < kFewestPhases) most.clear();
  return most;
}

// Tells which part of the recording a block was allocated in.
class Parts {
 public:
  Parts(const Recording& recording, const BlockLifetimes& lifetimes)
      : phases_(phases_of(recording)), blocks_(lifetimes.blocks.size()) {}
  bool are_marked() const { return !phases_.empty(); }
  std::size_t count() const { return phases_.empty() ? kParts : phases_.size(); }
  // Blocks from before the first phase are in none: count().
  std::size_t of(std::size_t block, const BlockLifetime& lifetime) const {
    if (lifetime.live_at_begin) return count();
    if (phases_.empty()) return block * kParts / blocks_;
    const auto after = std::upper_bound(phases_.begin(), phases_.end(), lifetime.begin);
    return after == phases_.begin() ? count()
                                    : static_cast<std::size_t>(after - phases_.begin()) - 1;
  }

 private:
  const std::vector<Nanoseconds> phases_;
  const std::size_t blocks_;
};

struct Survivors {
  std::vector<std::uint64_t> by_part;
  std::uint64_t blocks = 0;
  Bytes bytes;
  Nanoseconds first, last;
};

}  // namespace

std::vector<Growth> growth_of(const Recording& recording, const BlockLifetimes& lifetimes,
                              const ReportNames& names) {
  const Parts parts(recording, lifetimes);
  std::uint64_t survivors = 0;
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, Survivors> groups;
  for (std::size_t i = 0; i < lifetimes.blocks.size(); ++i) {
    const BlockLifetime& lifetime = lifetimes.blocks[i];
    if (!lifetime.live_at_end) continue;
    const std::size_t part = parts.of(i, lifetime);
    if (part == parts.count()) continue;
    Survivors& group =
        groups[{names.number_of(lifetime.stack), lifetime.stream, lifetime.requested.count}];
    group.by_part.resize(parts.count());
    if (group.blocks == 0) group.first = lifetime.begin - recording.begin();
    group.last = lifetime.begin - recording.begin();
    ++survivors;
    ++group.by_part[part];
    ++group.blocks;
    group.bytes += lifetime.bytes;
  }
  std::vector<Growth> list;
  // A program that mostly keeps what it allocates is being loaded.
  if (survivors * 2 > lifetimes.blocks.size()) return list;
  // Where nothing says what the phases are, a short burst of allocations is none.
  const Nanoseconds least =
      parts.are_marked() ? 0_ns : Nanoseconds{(recording.end() - recording.begin()).count / 2};
  for (const auto& [key, group] : groups) {
    const auto& [stack, stream, requested] = key;
    const auto grew = static_cast<std::size_t>(
        std::count_if(group.by_part.begin(), group.by_part.end(), [](auto n) { return n > 0; }));
    if (grew * 4 < parts.count() * 3 || group.last - group.first < least) continue;
    // Without a stack gradients, weights and an optimizer's state may be one group, which grows in
    // bursts; a leak grows evenly.
    const bool may_be_several = stack == 0 && !parts.are_marked();
    if (may_be_several && std::ranges::min(group.by_part) * 2 * parts.count() < group.blocks)
      continue;
    list.push_back({.stack = stack,
                    .stream = stream,
                    .stream_name = stream_text(stream),
                    .place = names.place(stack),
                    .requested = Bytes{requested},
                    .blocks = group.blocks,
                    .bytes = group.bytes,
                    .grew = static_cast<unsigned>(grew),
                    .parts = static_cast<unsigned>(parts.count()),
                    .first = group.first,
                    .last = group.last});
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Growth& a, const Growth& b) { return a.bytes > b.bytes; });
  return list;
}

}  // namespace weir
