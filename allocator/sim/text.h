// SPDX-License-Identifier: Apache-2.0
// How SimDevice's messages show addresses and ranges.
#pragma once

#include <cinttypes>
#include <cstdio>
#include <string>

#include "weir/types.h"

namespace weir::sim {

inline std::string text(Address address) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "0x%" PRIx64, address.value);
  return buffer;
}

inline std::string text(Bytes bytes) { return std::to_string(bytes.count) + " bytes"; }

inline std::string range_text(Address address, Bytes bytes) {
  return text(bytes) + " at " + text(address);
}

}  // namespace weir::sim
