// SPDX-License-Identifier: Apache-2.0
// A running hash of where blocks were placed, for comparing two runs of one program, or its ranks.
//
// A block counts with its place and its size. The place is the number of its region in the pool, in
// order of reservation, and the offset there: so runs compare wherever the driver put the regions.
#pragma once

#include <cstdint>

#include "weir/types.h"

namespace weir {

// Of one stream: in order of its placements. Not thread-safe.
class Layout {
 public:
  // A place in a pool.
  static std::uint64_t place(std::uint64_t region, Bytes offset) {
    return (region << kOffsetBits) + offset.count;
  }
  // What a block counts as.
  static std::uint64_t item(std::uint64_t place, Bytes size) {
    return scramble(place * kGolden + size.count);
  }
  // Of a small block in a slab of which address 0 would count as `slab`. (The sum must not be the
  // same where a larger block begins as much earlier.)
  static std::uint64_t small_item(std::uint64_t slab, Address at, Bytes size) {
    return slab + at.value + size.count * 8;
  }

  // From here on it is of the pool's `stream`-th stream.
  void begin(std::uint64_t stream) { hash_ = stream; }
  void add(std::uint64_t item) { hash_ = hash_ * kMultiplier + item; }
  // Those of several streams are added up: which thread came first does not count.
  std::uint64_t hash() const { return scramble(hash_); }

 private:
  static constexpr int kOffsetBits = 44;
  static constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
  // Odd, and of 31 bits, which an instruction has room for.
  static constexpr std::uint64_t kMultiplier = 0x5851f42d;
  // Source: the finaliser of splitmix64 (Steele, Lea and Flood 2014).
  static constexpr std::uint64_t scramble(std::uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }

  std::uint64_t hash_ = 0;
};

}  // namespace weir
