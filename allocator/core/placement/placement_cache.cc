// SPDX-License-Identifier: Apache-2.0
#include "core/placement/placement_cache.h"

#include <utility>

namespace weir {

void PlacementCache::add_first() {
  segments_.push_back(std::make_unique<Segment>());
  directory_.push_back(segments_.back().get());
}

void PlacementCache::remember(RequestKeys keys, Address at) {
  if (directory_.empty()) add_first();
  while (true) {
    Segment& segment = segment_of(keys.brief);
    const bool may_split = segment.depth < kDeepest;
    // Half full at most, so that a probe is short.
    if (std::size_t{segment.filled} * 2 >= kSegment && may_split) {
      split(segment, keys.brief);
      continue;
    }
    const std::optional<Noted> noted = std::exchange(noted_, std::nullopt);
    if (noted && noted->keys == keys) return put(segment, *noted->place, {keys, at});
    Probe probe(segment, keys.brief);
    while (!probe.done()) probe.next();
    if (!probe.full() || !may_split) return put(segment, probe.place(), {keys, at});
    split(segment, keys.brief);
  }
}

void PlacementCache::put(Segment& segment, Entry& place, Entry entry) {
  if (place.at == Address{}) ++segment.filled;
  place = entry;
}

// The entries of which the next bit of the hash is set go to a segment of their own. `brief` is a
// key of the segment.
void PlacementCache::split(Segment& segment, std::uint32_t brief) {
  if (segment.depth == depth_) {
    std::vector<Segment*> doubled;
    for (Segment* const each : directory_) doubled.insert(doubled.end(), 2, each);
    directory_ = std::move(doubled);
    ++depth_;
  }
  noted_.reset();
  segments_.push_back(std::make_unique<Segment>());
  Segment* const upper = segments_.back().get();
  upper->depth = ++segment.depth;
  // Those that lead to the segment lie side by side; the second half is the new one's.
  const std::size_t count = std::size_t{1} << (depth_ - segment.depth);
  const std::size_t first = index_of(brief) & ~(count * 2 - 1);
  for (std::size_t i = 0; i < count; ++i) directory_[first + count + i] = upper;

  const std::array<Entry, kSegment> old = segment.entries;
  segment.entries = {};
  segment.filled = 0;
  // A key's places in their order: they begin behind an empty entry. (None comes to lie farther
  // from its hash than before.)
  std::size_t empty = 0;
  while (empty < kSegment && old[empty].at != Address{}) ++empty;
  for (std::size_t i = 0; i < kSegment; ++i) {
    const Entry& entry = old[(empty + i) % kSegment];
    if (entry.at == Address{}) continue;
    Segment& its = segment_of(entry.keys.brief);
    std::size_t at = hash(entry.keys.brief) % kSegment;
    while (its.entries[at].at != Address{}) at = (at + 1) % kSegment;
    put(its, its.entries[at], entry);
  }
}

}  // namespace weir
