#include "core/placement_memory.h"

#include <utility>

namespace weir {
namespace {

// Source: the finaliser of splitmix64 (Steele, Lea and Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

constexpr std::uint64_t power(std::uint64_t base, std::size_t exponent) {
  std::uint64_t product = 1;
  for (std::size_t i = 0; i < exponent; ++i) product *= base;
  return product;
}

}  // namespace

std::uint64_t RequestHistory::note(Bytes size, std::uint64_t epoch) {
  if (epoch != epoch_) {
    *this = RequestHistory{};
    epoch_ = epoch;
  }
  constexpr std::uint64_t kOldestFactor = power(kMultiplier, kDepth);
  const std::uint64_t item = mix(size.count);
  const std::uint64_t oldest = std::exchange(last_[next_], item);
  next_ = (next_ + 1) % kDepth;
  hash_ = hash_ * kMultiplier + item - oldest * kOldestFactor;
  return mix(hash_ ^ mix(held_.count));
}

std::size_t PlacementMemory::slot(std::uint64_t key) const {
  return mix(key) & (entries_.size() - 1);
}

const PlacementMemory::Entry* PlacementMemory::find(std::uint64_t key) const {
  if (entries_.empty()) return nullptr;
  const std::size_t first = slot(key);
  for (std::size_t probe = 0; probe < kProbes; ++probe) {
    const Entry& entry = entries_[(first + probe) & (entries_.size() - 1)];
    if (entry.at == Address{}) break;
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

void PlacementMemory::remember(std::uint64_t key, Address at) {
  if (filled_ * 2 >= entries_.size() && entries_.size() < kMostEntries) grow();
  std::uint64_t way = 0;
  while (way + 1 < kWays && find(key + way) != nullptr) ++way;
  put(key + way, at);
}

void PlacementMemory::put(std::uint64_t key, Address at) {
  const std::size_t first = slot(key);
  Entry* place = &entries_[first];  // the one that is overwritten where all are taken
  for (std::size_t probe = 0; probe < kProbes; ++probe) {
    Entry& entry = entries_[(first + probe) & (entries_.size() - 1)];
    if (entry.at == Address{}) {
      ++filled_;
      place = &entry;
      break;
    }
    if (entry.key == key) {
      place = &entry;
      break;
    }
  }
  *place = {key, at};
}

void PlacementMemory::grow() {
  const std::size_t size = entries_.empty() ? kFirstEntries : entries_.size() * 2;
  const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(size));
  filled_ = 0;
  for (const Entry& entry : old) {
    if (entry.at != Address{}) put(entry.key, entry.at);
  }
}

}  // namespace weir
