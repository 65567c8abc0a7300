// Remembers where each request of a repeating program was put, so that the next round of the same
// requests goes to the same places: then nothing moves, and nothing is mapped.
//
// A request is known by what its heap holds and by the sizes that the heap was last asked for. What
// is recalled is a hint: the place may be taken, or gone. Bounded: newer requests overwrite older.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "weir/types.h"

namespace weir {

// The last sizes that a heap was asked for, and what it holds. Not thread-safe.
class RequestHistory {
 public:
  // Notes a request; the key of this request in its context. `epoch` rises whenever the device held
  // nothing: from there on there is no past, so that a program that starts anew is recognised from
  // its first request.
  std::uint64_t note(Bytes size, std::uint64_t epoch);
  void add(Bytes size) { held_ += size; }
  void subtract(Bytes size) { held_ -= size; }

 private:
  static constexpr std::size_t kDepth = 32;
  static constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;

  std::array<std::uint64_t, kDepth> last_{};
  std::size_t next_ = 0;
  std::uint64_t hash_ = 0;  // polynomial in kMultiplier over last_, oldest first
  Bytes held_;
  std::uint64_t epoch_ = 0;
};

// The places that each key was given, the first first: in the same state the same one is free.
// Self-contained; not thread-safe.
class PlacementMemory {
 public:
  // The first remembered place for `key` of which `usable(place)` holds.
  template <class Usable>
  std::optional<Address> recall(std::uint64_t key, Usable&& usable) const {
    for (std::uint64_t way = 0; way < kWays; ++way) {
      const Entry* entry = find(key + way);
      if (entry == nullptr) break;
      if (usable(entry->at)) return entry->at;
    }
    return std::nullopt;
  }
  // A place for `key` behind those that it has; the last one goes if it has them all.
  void remember(std::uint64_t key, Address at);

 private:
  struct Entry {
    std::uint64_t key = 0;
    Address at;
  };
  static constexpr std::size_t kFirstEntries = 1 << 10;
  static constexpr std::size_t kMostEntries = 1 << 18;  // 4 MiB

  static constexpr std::uint64_t kWays = 8;
  static constexpr std::size_t kProbes = 32;

  std::size_t slot(std::uint64_t key) const;
  const Entry* find(std::uint64_t key) const;
  void put(std::uint64_t key, Address at);
  void grow();

  std::vector<Entry> entries_;
  std::size_t filled_ = 0;
};

}  // namespace weir
