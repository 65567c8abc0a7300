// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace weir::peers {

Sample summary(std::vector<double> batches, std::uint64_t pairs_each) {
  if (batches.empty()) throw std::logic_error("a loop ended before its first batch");
  std::sort(batches.begin(), batches.end());
  const auto quantile = [&](double share) {
    return batches[static_cast<std::size_t>(
        std::lround(share * static_cast<double>(batches.size() - 1)))];
  };
  const double sum = std::accumulate(batches.begin(), batches.end(), 0.0);
  return {.mean = sum / static_cast<double>(batches.size()),
          .median = quantile(0.5),
          .low = quantile(0.05),
          .high = quantile(0.95),
          .pairs = batches.size() * pairs_each};
}

}  // namespace weir::peers
