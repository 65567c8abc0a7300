// SPDX-License-Identifier: Apache-2.0
// The marker of a trace that says that a request failed: docs/recording.md.
#pragma once

#include <charconv>
#include <cstddef>
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

struct FailedMark {
  std::uint64_t bytes = 0, stream = 0;
};

// None: another marker.
inline std::optional<FailedMark> failed_mark(std::string_view mark) {
  if (!mark.starts_with(kFailedMark)) return std::nullopt;
  const char* const end = mark.data() + mark.size();
  FailedMark failed;
  const auto bytes = std::from_chars(mark.data() + kFailedMark.size(), end, failed.bytes);
  if (bytes.ec != std::errc{}) return std::nullopt;
  const std::size_t stream = mark.rfind(' ') + 1;
  (void)std::from_chars(mark.data() + stream, end, failed.stream);
  return failed;
}

}  // namespace weir
