// SPDX-License-Identifier: Apache-2.0
// The random mix: 2,048 live blocks of 512 B to 16 MiB, the logarithm of the size uniform, to the
// byte; then again and again one of them, at random, is freed and a new one allocated.
//
// Sizes and indices are precomputed from a fixed seed, and are the same wherever the program runs.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "weir/types.h"

namespace weir::bench {

inline constexpr std::size_t kMixLive = 2048;
inline constexpr std::uint64_t kMixSeed = 20261121;

class MixSizes {
 public:
  explicit MixSizes(std::uint64_t seed) : random_(seed) {}

  Bytes next() {
    // 53 random bits as a number from 0 to 1: the library's distributions differ between systems.
    const double part = static_cast<double>(random_() >> 11) * 0x1p-53;
    return {static_cast<std::uint64_t>(512.0 * std::exp2(15.0 * part))};
  }
  std::size_t below(std::size_t n) { return random_() % n; }

 private:
  std::mt19937_64 random_;
};

// "Free live block `index`, and allocate `bytes` in its place."
struct Replacement {
  std::uint32_t bytes;
  std::uint32_t index;
};

struct Mix {
  std::vector<Bytes> first;               // sizes of the blocks that are live at the start
  std::vector<Replacement> replacements;  // in order
};

inline Mix make_mix(std::size_t live, std::size_t replacements) {
  MixSizes sizes(kMixSeed);
  Mix mix;
  for (std::size_t i = 0; i < live; ++i) mix.first.push_back(sizes.next());
  mix.replacements.reserve(replacements);
  for (std::size_t i = 0; i < replacements; ++i) {
    mix.replacements.push_back({static_cast<std::uint32_t>(sizes.next().count),
                                static_cast<std::uint32_t>(sizes.below(live))});
  }
  return mix;
}

}  // namespace weir::bench
