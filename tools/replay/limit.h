// SPDX-License-Identifier: Apache-2.0
// A memory limit as the command line takes it.
#pragma once

#include <string_view>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// A number of bytes, or a multiple of what the program itself needs at its peak; neither: no limit.
struct ReplayLimit {
  Bytes bytes;
  double ratio = 0;

  // In bytes, for a trace with this peak; rounded up, and zero only where there is no limit.
  Bytes for_peak(Bytes peak_live) const;
};

// "1.03x", or a size as parse_bytes() takes it ("40GiB"). Errors: invalid_argument.
Result<ReplayLimit> parse_replay_limit(std::string_view text);

}  // namespace weir
