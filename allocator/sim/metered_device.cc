// SPDX-License-Identifier: Apache-2.0
#include "weir/metered_device.h"

#include "weir/sim_device.h"

namespace weir {

MeteredDevice::MeteredDevice(Device& inner, bool timed)
    : InterposedDevice(inner), timed_(timed), sim_(dynamic_cast<SimDevice*>(&inner)) {}

std::vector<DeviceCallCount> MeteredDevice::made() const {
  std::vector<DeviceCallCount> made;
  for (int i = 0; i < kDeviceCalls; ++i) {
    const auto call = static_cast<DeviceCall>(i);
    if (calls(call) > 0) made.push_back({name_of(call), calls(call), time_in(call)});
  }
  return made;
}

std::uint64_t MeteredDevice::calls(DeviceCall call) const {
  return meter(call).calls.load(std::memory_order_relaxed);
}

Nanoseconds MeteredDevice::time_in(DeviceCall call) const {
  return {meter(call).nanoseconds.load(std::memory_order_relaxed)};
}

Nanoseconds MeteredDevice::total_time() const {
  Nanoseconds total;
  for (int call = 0; call < kDeviceCalls; ++call) total += time_in(static_cast<DeviceCall>(call));
  return total;
}

std::uint64_t MeteredDevice::host_waits() const {
  return host_waits_.load(std::memory_order_relaxed);
}

void MeteredDevice::reset() {
  for (Meter& each : meters_) {
    each.calls.store(0, std::memory_order_relaxed);
    each.nanoseconds.store(0, std::memory_order_relaxed);
  }
  host_waits_.store(0, std::memory_order_relaxed);
}

bool MeteredDevice::finished(EventHandle event) {
  if (sim_ != nullptr) return sim_->finished(event);
  const Result<bool> answer = inner_.query(event);
  return !answer.ok() || *answer;
}

Status MeteredDevice::synchronize(EventHandle event) {
  const bool must_wait = timed_ && !finished(event);
  Status done = InterposedDevice::synchronize(event);
  if (must_wait && done.ok()) host_waits_.fetch_add(1, std::memory_order_relaxed);
  return done;
}

Status MeteredDevice::synchronize_context() {
  Status done = InterposedDevice::synchronize_context();
  if (timed_ && done.ok()) host_waits_.fetch_add(1, std::memory_order_relaxed);
  return done;
}

}  // namespace weir
