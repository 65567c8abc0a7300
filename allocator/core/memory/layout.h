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
  // What turns an address of a region into a place: the region's number, and the offset there.
  static std::uint64_t shift(std::uint64_t region, Address begin) {
    return (region << kOffsetBits) - begin.value;
  }
  // What a block counts as. (Not the same where a larger block begins as much earlier.)
  static std::uint64_t item(std::uint64_t shift, Address at, Bytes size) {
    return shift + at.value + size.count * 8;
  }

  // From here on it is of the pool's `stream`-th stream.
  void begin(std::uint64_t stream) { hash_ = stream; }
  void add(std::uint64_t item) { hash_ = hash_ * kMultiplier + item; }
  // Those of several streams are added up: which thread came first does not count.
  std::uint64_t hash() const { return scramble(hash_); }

 private:
  static constexpr int kOffsetBits = 44;
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
