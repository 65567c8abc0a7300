// SPDX-License-Identifier: Apache-2.0
// Telling by a number whether two things are the same. Guards against chance, not against anybody.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace weir {

inline constexpr std::uint64_t kDigestStart = 0xcbf29ce484222325;

// FNV-1a (Fowler, Noll, Vo) of the bytes, after what `before` stands for.
inline std::uint64_t digest(std::string_view text, std::uint64_t before = kDigestStart) {
  for (const char c : text) before = (before ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return before;
}
// The same, a word at a time.
inline std::uint64_t digest(std::span<const std::uint64_t> words,
                            std::uint64_t before = kDigestStart) {
  for (const std::uint64_t word : words) before = (before ^ word) * 0x100000001b3;
  return before;
}

}  // namespace weir
