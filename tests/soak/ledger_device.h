// SPDX-License-Identifier: Apache-2.0
// A device that counts what it gave out and did not get back, and that fails a call of the thread
// that asked for it: the same on a simulated device and on a GPU.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "weir/interposed_device.h"
#include "weir/types.h"

namespace weir::soak {

// What is out now.
struct Ledger {
  std::int64_t events = 0, pages = 0, mappings = 0, reservations = 0, segments = 0, graphs = 0,
               executables = 0, host_blocks = 0;
};

// Threads: as Device.
class LedgerDevice final : public InterposedDevice<LedgerDevice> {
 public:
  using InterposedDevice::InterposedDevice;

  Ledger ledger() const;

  // While it lives, the `nth` call (1: the next) that this thread makes of any LedgerDevice fails
  // with ErrorCode::device, before the device hears of it. One in a thread at a time.
  class Fault {
   public:
    explicit Fault(std::uint64_t nth);
    ~Fault();
    Fault(const Fault&) = delete;
    Fault& operator=(const Fault&) = delete;
    bool hit() const;
  };

 private:
  friend class InterposedDevice<LedgerDevice>;

  // An end_capture() is never failed here: a capture that ended has ended, whatever is told.
  template <class Make>
  auto pass(DeviceCall call, Make&& make) -> decltype(make()) {
    if (call != DeviceCall::end_capture && fails()) {
      return Error(ErrorCode::device, std::string(name_of(call)) + ": failed by the soak");
    }
    auto answer = make();
    if (answer.ok()) done_[static_cast<std::size_t>(call)].fetch_add(1, std::memory_order_relaxed);
    return answer;
  }
  static bool fails();
  std::int64_t out(DeviceCall given, DeviceCall got_back) const;

  std::array<std::atomic<std::int64_t>, kDeviceCalls> done_{};  // calls that succeeded
};

}  // namespace weir::soak
