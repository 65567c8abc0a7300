// SPDX-License-Identifier: Apache-2.0
// SimDevice's host memory, which has addresses and no bytes: what it holds is known by Contents.
//
// Errors: ErrorCode::device; out_of_memory where the host has no more. Not thread-safe.
#pragma once

#include <map>

#include "sim/race_checker.h"
#include "sim/sim_contents.h"
#include "weir/device.h"

namespace weir::sim {

class HostMemory {
 public:
  explicit HostMemory(Bytes total) : total_(total) {}

  Result<void*> allocate(Bytes size);
  Status free(void* memory, Bytes size);
  // Is it all of one allocation?
  Status check(DeviceCall call, const void* memory, Bytes size) const;
  Bytes held() const { return held_; }

  Contents contents;  // by host address
  PageStamps stamps;  // of the device's copies, by host address

 private:
  const Bytes total_;
  Bytes held_;
  std::map<Address, Bytes> blocks_;
};

}  // namespace weir::sim
