// SPDX-License-Identifier: Apache-2.0
// The calls made of a SimDevice: how many of each, what host time they cost, and which of them fail
// by script. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir/device.h"

namespace weir::sim {

class Calls {
 public:
  // Counts a call. Errors: the one that it was scripted to fail with.
  Status count(DeviceCall call) {
    Tally& tally = of(call);
    ++tally.calls;
    std::optional<ErrorCode> fault;
    std::erase_if(tally.faults, [&](Fault& scripted) {
      if (--scripted.calls_to_go != 0) return false;
      fault = scripted.code;
      return true;
    });
    if (!fault) return {};
    return Error(*fault, std::string(name_of(call)) + ": scripted fault in call " +
                             std::to_string(tally.calls));
  }
  void charge(DeviceCall call, Nanoseconds cost) { of(call).time += cost; }

  std::uint64_t calls(DeviceCall call) const { return of(call).calls; }
  Nanoseconds time_in(DeviceCall call) const { return of(call).time; }

  // The `nth` call of this kind from now on fails once.
  void fail(DeviceCall call, std::uint64_t nth, ErrorCode code) {
    of(call).faults.push_back({nth, code});
  }
  // Returns how many faults had not come yet.
  std::uint64_t forget_faults() {
    std::uint64_t forgotten = 0;
    for (Tally& tally : tallies_) {
      forgotten += tally.faults.size();
      tally.faults.clear();
    }
    return forgotten;
  }

 private:
  struct Fault {
    std::uint64_t calls_to_go;
    ErrorCode code;
  };
  struct Tally {
    std::uint64_t calls = 0;
    Nanoseconds time;
    std::vector<Fault> faults;
  };
  Tally& of(DeviceCall call) { return tallies_[static_cast<std::size_t>(call)]; }
  const Tally& of(DeviceCall call) const { return tallies_[static_cast<std::size_t>(call)]; }

  std::array<Tally, kDeviceCalls> tallies_;
};

}  // namespace weir::sim
