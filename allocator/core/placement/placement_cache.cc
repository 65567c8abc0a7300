// SPDX-License-Identifier: Apache-2.0
#include "core/placement/placement_cache.h"

#include <algorithm>
#include <utility>

namespace weir {

void PlacementCache::remember(RequestKeys keys, Address at) {
  // Half full at most, so that a probe is short.
  if (is_half_full() && entries_.size() < kMost) grow();
  Probe probe(entries_, keys.brief);
  while (!probe.done()) probe.next();
  put(probe.place(), {keys, at});
}

void PlacementCache::put(Entry& place, Entry entry) {
  if (place.at == Address{}) {
    if (is_half_full()) return put_in_place_of_another(place, entry);
    ++filled_;
  }
  place = entry;
}

// An entry goes that an empty one follows, as no probe leads beyond it: the one before `place`, if
// the key's probe came by there; else the next such.
void PlacementCache::put_in_place_of_another(Entry& place, Entry entry) {
  const auto next = [&](Entry* at) { return at == &entries_.back() ? entries_.data() : at + 1; };
  Entry* other = &entries_[place_of(entry.keys.brief, entries_.size())];
  while (other->at == Address{} || next(other)->at != Address{}) other = next(other);
  if (next(other) != &place) {
    other->at = {};
    other = &place;
  }
  *other = entry;
}

// A key's places keep their order, as they begin behind an empty entry.
void PlacementCache::grow() {
  const Entries old = std::exchange(entries_, Entries(std::max(kLeast, entries_.size() * 4)));
  filled_ = 0;
  const std::size_t last = entries_.size() - 1;
  std::size_t from = 0;
  while (from < old.size() && old[from].at != Address{}) ++from;
  for (std::size_t i = 0; i < old.size(); ++i, ++from) {
    const Entry& entry = old[from & (old.size() - 1)];
    if (entry.at == Address{}) continue;
    std::size_t to = place_of(entry.keys.brief, entries_.size());
    while (entries_[to].at != Address{}) to = (to + 1) & last;
    put(entries_[to], entry);
  }
}

}  // namespace weir
