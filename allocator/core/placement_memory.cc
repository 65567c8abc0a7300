#include "core/placement_memory.h"

#include <utility>

namespace weir {

void PlacementMemory::remember(RequestKeys keys, Address at) {
  if (filled_ * 2 >= entries_.size() && entries_.size() < kMostEntries) grow();
  if (noted_ && noted_->keys == keys) {
    put(noted_->place, {keys, at});
    return;
  }
  Probe probe(*this, keys.brief);
  while (!probe.done()) probe.next();
  if (probe.full() && entries_.size() < kMostEntries) {
    grow();
    remember(keys, at);
    return;
  }
  put(probe.place(), {keys, at});
}

void PlacementMemory::prefer(RequestKeys keys, Address at, Address other) {
  for (Probe probe(*this, keys.brief); !probe.done(); probe.next()) {
    Entry& entry = entries_[probe.at()];
    if (!(entry.keys == keys)) continue;
    if (entry.at == other) {
      entry.at = at;
    } else if (entry.at == at) {
      entry.at = other;
    }
  }
}

void PlacementMemory::put(std::size_t place, Entry entry) {
  if (entries_[place].at == Address{}) ++filled_;
  entries_[place] = entry;
  noted_.reset();
}

void PlacementMemory::grow() {
  const std::size_t size = entries_.empty() ? kFirstEntries : entries_.size() * 2;
  const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(size));
  filled_ = 0;
  noted_.reset();
  // A key's places in their order: they begin behind an empty entry, or where the entries end.
  std::size_t first = 0;
  while (first < old.size() && old[first].at != Address{}) ++first;
  for (std::size_t i = 0; i < old.size(); ++i) {
    const Entry& entry = old[(first + i) % old.size()];
    if (entry.at == Address{}) continue;
    Probe probe(*this, entry.keys.brief);
    while (!probe.done()) probe.next();
    put(probe.place(), entry);
  }
}

}  // namespace weir
