// SPDX-License-Identifier: Apache-2.0
// About how fast an H200 is, for kernels that take as long as their bytes or their products.
#pragma once

namespace weir::sharded {

constexpr double kBf16 = 2, kFloat = 4;  // bytes of an element
constexpr double kBytesPerNs = 3300;
constexpr double kFlopsPerNs = 550'000;

constexpr double moving(double bytes) { return bytes / kBytesPerNs; }

}  // namespace weir::sharded
