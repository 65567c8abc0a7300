// SPDX-License-Identifier: Apache-2.0
// A device that counts and times the calls made to another, the same way for every device.
//
// Threads: as Device; figures may be read at any time: each is exact, but they are not of one
// moment. Time is taken from the other device's clock. SimDevice's one clock stands for one host
// thread: with several, each call's time includes what the others' calls cost meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weir/interposed_device.h"
#include "weir/statistics.h"

namespace weir {

class SimDevice;

class MeteredDevice final : public InterposedDevice<MeteredDevice> {
 public:
  // `inner` must outlive this. Not `timed`: calls are only counted, which costs some
  // nanoseconds each; times and host_waits() stay zero.
  explicit MeteredDevice(Device& inner, bool timed = true);

  // Those that were made, in the order of DeviceCall.
  std::vector<DeviceCallCount> made() const;
  std::uint64_t calls(DeviceCall call) const;  // failed ones included
  Nanoseconds time_in(DeviceCall call) const;  // host time spent in those calls
  Nanoseconds total_time() const;              // ... in all calls
  // Successful synchronize() calls whose event had not finished when they were made, and successful
  // synchronize_context() calls. On a real device that takes one more query of the event, which is
  // neither counted nor timed.
  std::uint64_t host_waits() const;
  void reset();

  Status synchronize(EventHandle event) override;
  Status synchronize_context() override;

 private:
  friend class InterposedDevice<MeteredDevice>;
  struct Meter {
    std::atomic<std::uint64_t> calls = 0;
    std::atomic<std::int64_t> nanoseconds = 0;
  };

  template <class Make>
  auto pass(DeviceCall call, Make&& make) -> decltype(make()) {
    Meter& meter = meters_[static_cast<std::size_t>(call)];
    meter.calls.fetch_add(1, std::memory_order_relaxed);
    if (!timed_) return make();
    const Nanoseconds start = now();
    auto answer = make();
    meter.nanoseconds.fetch_add((now() - start).count, std::memory_order_relaxed);
    return answer;
  }
  bool finished(EventHandle event);
  const Meter& meter(DeviceCall call) const { return meters_[static_cast<std::size_t>(call)]; }

  const bool timed_;
  SimDevice* const sim_;  // inner_, if it is one: it can tell what a query would say at no cost
  std::array<Meter, kDeviceCalls> meters_;
  std::atomic<std::uint64_t> host_waits_ = 0;
};

}  // namespace weir
