// SPDX-License-Identifier: Apache-2.0
// torch.cuda.set_per_process_memory_fraction() beside WEIR_LIMIT.
#pragma once

#include <algorithm>
#include <cstdint>

#include "weir/types.h"

namespace weir::pytorch {

// The most that a heap may hold, zero for no limit: the fraction of `total`, unless `configured`
// (zero: no limit) is less.
inline Bytes limit_of(double fraction, Bytes total, Bytes configured) {
  if (fraction >= 1) return configured;
  // A fraction of zero leaves one byte.
  const auto bytes = static_cast<std::uint64_t>(static_cast<double>(total.count) * fraction);
  const Bytes limit{std::max<std::uint64_t>(bytes, 1)};
  return configured > 0_B ? std::min(limit, configured) : limit;
}

}  // namespace weir::pytorch
