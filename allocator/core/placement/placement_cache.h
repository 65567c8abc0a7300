// SPDX-License-Identifier: Apache-2.0
// Remembers where each request of a repeating program was put, so that the next round of the same
// requests goes to the same places: then nothing moves, and nothing is mapped.
//
// A request is known by what its heap holds and by the sizes that the heap was last asked for: by
// many of them, and where nothing is remembered of these, by few. What is recalled is a hint: the
// place may be taken, or gone. Bounded: newer requests overwrite older.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/mechanism.h"
#include "weir/types.h"

namespace weir {

// What a request is remembered by.
struct RequestKeys {
  std::uint32_t whole;  // of its name, which is of the last 32 sizes and of what is held
  // Of the last two, and of what is held: what a program comes to from elsewhere.
  std::uint32_t brief;
  friend bool operator==(RequestKeys, RequestKeys) = default;
};

// The last sizes that a heap was asked for, and what it holds. A heap that holds nothing has no
// past: a program that starts anew is recognised from its first request. Not thread-safe.
class RequestHistory {
 public:
  // Names a request, in its context; key() spreads names out.
  using Name = std::uint64_t;
  static std::uint64_t key(Name name) {
    // Source: the finaliser of splitmix64 (Steele, Lea and Flood 2014).
    name = (name ^ name >> 30) * 0xbf58476d1ce4e5b9;
    name = (name ^ name >> 27) * 0x94d049bb133111eb;
    return name ^ name >> 31;
  }

  // Of the last request, to which note() gave that name.
  RequestKeys keys(Name name) const {
    return {static_cast<std::uint32_t>(key(name)),
            static_cast<std::uint32_t>(key(name_of(brief_)))};
  }

  // Notes a request; its block is held from now on.
  Name note(Bytes size) {
    const std::uint64_t item = scatter(size.count), hash = hash_with(item);
    const Name name = name_of(hash);
    commit(size, item, hash);
    return name;
  }
  // Notes it if that is its name.
  [[gnu::always_inline]] bool note_if(Bytes size, Name expected) {
    const std::uint64_t item = scatter(size.count), hash = hash_with(item);
    if (name_of(hash) != expected && !without(Mechanism::cached_names)) return false;
    commit(size, item, hash);
    return true;
  }
  std::uint64_t noted() const { return noted_; }  // in all
  // A block is held no more.
  [[gnu::always_inline]] void subtract(Bytes size) {
    held_ -= size;
    if (held_ == 0_B) hash_ = brief_ = 0;
  }

 private:
  static constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;

  // Sizes are multiples of each other: sums of plain ones would meet by chance too often.
  static std::uint64_t scatter(std::uint64_t x) {
    x *= 0xd6e8feb86659fd93;
    return x ^ x >> 32;
  }
  // Each item that follows moves those before it up by two bits, so it is of the last 32. Source:
  // Xia et al. 2014, "Ddelta: A Deduplication-Inspired Fast Delta Compression Approach" (the gear
  // hash).
  std::uint64_t hash_with(std::uint64_t item) const { return (hash_ << 2) + item; }
  Name name_of(std::uint64_t hash) const { return hash + held_.count * kMultiplier; }
  void commit(Bytes size, std::uint64_t item, std::uint64_t hash) {
    hash_ = hash;
    brief_ = (brief_ << 32) + (item >> 32);
    ++noted_;
    held_ += size;
  }

  std::uint64_t hash_ = 0;
  std::uint64_t brief_ = 0;  // of the last two items
  std::uint64_t noted_ = 0;
  Bytes held_;
};

// The places that requests were given, the first first: in the same state the same one is free.
//
// A hash table, at most half full: four times as large then, up to kMost entries. Self-contained;
// not thread-safe.
class PlacementCache {
 public:
  // The first remembered place of which `usable(place)` holds: of those for the whole key, or else
  // for the brief one.
  template <class Usable>
  std::optional<Address> recall(RequestKeys keys, Usable&& usable) {
    if (entries_.empty()) return std::nullopt;
    std::array<std::uint64_t, kWays> others;  // the first `count`: the brief key's alone
    std::size_t count = 0;
    Probe probe(entries_, keys.brief);
    for (; !probe.done(); probe.next()) {
      if (!probe.is_keys()) continue;
      const Entry& entry = probe.entry();
      if (entry.keys.whole != keys.whole) {
        others[count++] = entry.at.value;
      } else if (usable(entry.at)) {
        return entry.at;
      }
    }
    for (std::size_t i = 0; i < count && !without(Mechanism::brief_key); ++i) {
      if (usable(Address{others[i]})) return Address{others[i]};
    }
    return std::nullopt;
  }
  // A place for these behind those that the brief key has; its last one goes if it has them all.
  void remember(RequestKeys keys, Address at);
  // Forgets all, and gives back its memory.
  void clear() { *this = PlacementCache{}; }

 private:
  struct Entry {
    RequestKeys keys{};
    Address at;
  };
  static_assert(sizeof(Entry) == 16);
  using Entries = std::vector<Entry>;
  static constexpr std::size_t kLeast = 1 << 7;
  static constexpr std::size_t kMost = 1 << 17;  // 2 MiB
  static constexpr int kWays = 16;               // of a brief key
  static constexpr int kProbes = 64;

  static std::size_t place_of(std::uint32_t brief, std::size_t entries) {
    return (brief * 0x9e3779b97f4a7c15 >> 32) * entries >> 32;
  }

  // Goes through the entries where those of a key are: up to an empty one.
  class Probe {
   public:
    Probe(Entries& entries, std::uint32_t brief)
        : entries_(entries.data()),
          last_(entries.size() - 1),
          brief_(brief),
          at_(place_of(brief, entries.size())),
          place_(at_) {}
    // Nothing of the key's follows.
    bool done() const { return left_ == 0 || ways_ == kWays || entry().at == Address{}; }
    void next() {
      if (is_keys() && ++ways_ == kWays) place_ = at_;
      at_ = (at_ + 1) & last_;
      --left_;
    }
    Entry& entry() const { return entries_[at_]; }
    bool is_keys() const { return entry().keys.brief == brief_; }
    // Where one more goes, once done: on an empty one, the key's last, or, where all are taken, the
    // first.
    Entry& place() const { return entries_[left_ > 0 && ways_ < kWays ? at_ : place_]; }

   private:
    Entry* entries_;
    std::size_t last_;
    std::uint32_t brief_;
    std::size_t at_, place_;
    int left_ = kProbes, ways_ = 0;
  };

  bool is_half_full() const { return filled_ * 2 >= entries_.size(); }
  void grow();
  void put(Entry& place, Entry entry);
  void put_in_place_of_another(Entry& place, Entry entry);

  Entries entries_;
  std::size_t filled_ = 0;
};

}  // namespace weir
