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
  std::optional<std::uint64_t> time_us;  // where the mark says it: " at 12 us" at its end
};

// None: another marker.
inline std::optional<FailedMark> failed_mark(std::string_view mark) {
  if (!mark.starts_with(kFailedMark)) return std::nullopt;
  const char* const end = mark.data() + mark.size();
  FailedMark failed;
  const auto bytes = std::from_chars(mark.data() + kFailedMark.size(), end, failed.bytes);
  if (bytes.ec != std::errc{}) return std::nullopt;
  const auto number_after = [&](std::string_view words, std::uint64_t& number) {
    const std::size_t at = mark.find(words);
    return at != mark.npos &&
           std::from_chars(mark.data() + at + words.size(), end, number).ec == std::errc{};
  };
  (void)number_after(" on stream ", failed.stream);
  if (std::uint64_t time = 0; number_after(" at ", time)) failed.time_us = time;
  return failed;
}

}  // namespace weir
