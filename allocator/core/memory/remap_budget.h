// SPDX-License-Identifier: Apache-2.0
// How many mappings of existing pages the program can afford, so that the time spent on them stays
// under half a percent of the least time that its work can have taken.
//
// Both are counted, not measured, so that the same program is placed the same way every time.
// Source: the token bucket.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "weir/types.h"

namespace weir {

class RemapBudget {
 public:
  // Requests were served. (One that is passed over here for long earns no more than kMost.)
  void earn(std::uint64_t requests, Bytes bytes) {
    requests_ += requests;
    bytes_ += bytes;
  }
  void spend(std::uint64_t mappings) { mappings_ = saved() - static_cast<double>(mappings); }
  bool affords(std::uint64_t mappings) { return saved() >= static_cast<double>(mappings); }
  // True once mappings cost 0.2 s more than was earned. Only programs that never repeat come to
  // that: no recorded one does, nor with other sizes.
  bool is_far_overdrawn() { return saved() < -8 * kMost; }

 private:
  // A mapping of a page that exists takes 20.4 us on an H200 (map 0.4 us, set access 20 us).
  static constexpr double kMappingNs = 20'400;
  // A program's least time: the host's work around a request, and the GPU's on its bytes. Recorded
  // training and serving programs take 1.1 to 5 times this.
  static constexpr double kRequestNs = 60'000;
  static constexpr double kNsPerGiB = 3e6;
  static constexpr double kShare = 0.005;
  // Saved up, and there at the start: 25 ms.
  static constexpr double kMost = 1250;

  double saved() {
    const double work_ns = static_cast<double>(std::exchange(requests_, 0)) * kRequestNs +
                           static_cast<double>(std::exchange(bytes_, {}).count) /
                               static_cast<double>((1_GiB).count) * kNsPerGiB;
    return mappings_ = std::min(mappings_ + work_ns * kShare / kMappingNs, kMost);
  }

  double mappings_ = kMost;
  std::uint64_t requests_ = 0;  // earned by since, as are the bytes
  Bytes bytes_;
};

}  // namespace weir
