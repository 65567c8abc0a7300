// SPDX-License-Identifier: Apache-2.0
// Streams as events name them: a stream that is captured into a graph pool goes by an identity of
// its own, which is its id with the highest bit set (Stream::in_capture()); waits for the whole
// context name all streams at once.
#pragma once

#include <cstdint>
#include <string>

#include "weir/types.h"

namespace weir {

inline constexpr std::uint64_t kCapturedStream = std::uint64_t{1} << 63;

constexpr bool is_captured_stream(std::uint64_t id) { return (id & kCapturedStream) != 0; }
constexpr std::uint64_t captured_stream(std::uint64_t id) { return id | kCapturedStream; }
constexpr std::uint64_t eager_stream(std::uint64_t id) { return id & ~kCapturedStream; }

// "3"; "3, captured"; "all" (the work of all streams, which a stream waited for).
inline std::string stream_text(std::uint64_t id) {
  if (Stream{.id = id}.is_all()) return "all";
  std::string text = std::to_string(eager_stream(id));
  if (is_captured_stream(id)) text += ", captured";
  return text;
}

// "stream 3"; "stream 3, captured"; "all streams".
inline std::string stream_title(std::uint64_t id) {
  return Stream{.id = id}.is_all() ? "all streams" : "stream " + stream_text(id);
}

// "3", or "none" for memory of no graph pool.
inline std::string pool_name(std::uint64_t pool) {
  return pool == 0 ? "none" : std::to_string(pool);
}

}  // namespace weir
