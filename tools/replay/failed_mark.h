// SPDX-License-Identifier: Apache-2.0
// The marker of a trace that says that a request failed: docs/trace.md.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weir {

inline constexpr std::string_view kFailedMark = "out of memory: ";

inline std::string failed_request_mark(std::uint64_t bytes, std::uint64_t stream) {
  return std::string(kFailedMark) + std::to_string(bytes) + " bytes on stream " +
         std::to_string(stream);
}

// The bytes that the request was for; none: another marker.
inline std::optional<std::uint64_t> failed_request_bytes(std::string_view mark) {
  if (!mark.starts_with(kFailedMark)) return std::nullopt;
  mark.remove_prefix(kFailedMark.size());
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(mark.data(), mark.data() + mark.size(), bytes);
  if (error != std::errc{}) return std::nullopt;
  return bytes;
}

}  // namespace weir
