// SPDX-License-Identifier: Apache-2.0
#include "replay/limit.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "weir/config.h"

namespace weir {

Bytes ReplayLimit::for_peak(Bytes peak_live) const {
  if (ratio == 0) return bytes;
  // A program that needs nothing gets the least limit there is: zero would be none.
  const double limit = std::ceil(ratio * static_cast<double>(peak_live.count));
  return Bytes{limit < 1 ? 1 : static_cast<std::uint64_t>(limit)};
}

Result<ReplayLimit> parse_replay_limit(std::string_view text) {
  ReplayLimit limit;
  if (text.ends_with('x')) {
    // std::from_chars of a double is missing from some standard libraries still in use.
    const std::string number(text.substr(0, text.size() - 1));
    char* end = nullptr;
    limit.ratio = std::strtod(number.c_str(), &end);
    const bool whole = !number.empty() && *end == '\0' &&
                       number.find_first_not_of("0123456789.") == std::string::npos;
    if (whole && limit.ratio > 0 && limit.ratio <= 1e6) return limit;
  } else if (const Result<Bytes> bytes = parse_bytes(text); bytes.ok() && *bytes > 0_B) {
    limit.bytes = *bytes;
    return limit;
  }
  return Error(ErrorCode::invalid_argument,
               fmt::format("\"{}\" is no limit: give a size such as 40GiB or 512MiB, or a multiple "
                           "of the trace's own peak such as 1.03x",
                           text));
}

}  // namespace weir
