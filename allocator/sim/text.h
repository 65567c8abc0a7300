// SPDX-License-Identifier: Apache-2.0
// How SimDevice's messages show addresses and ranges, and what it refuses.
#pragma once

#include <cinttypes>
#include <cstdio>
#include <string>

#include "weir/device.h"
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

inline Error refused(DeviceCall call, const std::string& why) {
  return {ErrorCode::device, std::string(name_of(call)) + ": " + why};
}
inline Error no_stream(DeviceCall call, Stream stream) {
  return refused(call, "invalid handle: no stream " + std::to_string(stream.id));
}

}  // namespace weir::sim
