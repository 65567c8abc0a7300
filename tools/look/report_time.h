// A length of time as the command line takes it.
#pragma once

#include <string_view>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// "1.5s", "200ms", "300us", "40ns"; a space may stand before the unit. Not negative.
// Errors: invalid_argument.
Result<Nanoseconds> parse_time(std::string_view text);

}  // namespace weir
