// SPDX-License-Identifier: Apache-2.0
#include "core/base/format.h"

#include <fmt/format.h>

namespace weir {

std::string format(Bytes bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1_KiB) return fmt::format("{} B", bytes.count);
  double amount = static_cast<double>(bytes.count) / 1024;
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(kUnits)) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", amount, kUnits[unit]);
}

std::string format(Address address) { return fmt::format("{:#x}", address.value); }

}  // namespace weir
