// SPDX-License-Identifier: Apache-2.0
// Numbers in text that others wrote: launchers, the kernel, users.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace weir {

// All of `text`, digits alone, as a whole number from 0 to `most`. Absent: it is none.
inline std::optional<std::uint64_t> whole_number(std::string_view text, std::uint64_t most) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const bool is_one = error == std::errc{} && rest == end && number <= most;
  return is_one ? std::optional(number) : std::nullopt;
}

// As NCCL numbers its versions: "2.28.9" of 22809.
inline std::string nccl_version_text(int version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace weir
