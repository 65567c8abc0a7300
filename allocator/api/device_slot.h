// SPDX-License-Identifier: Apache-2.0
// One device of an allocator: the device, its heap, and who listens to the heap's events.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "api/event_sinks.h"
#include "api/recordings.h"
#include "weir/config.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/metered_device.h"
#include "weir/result.h"

namespace weir {

// Owns the heap, and the device if it was given one to own. Threads: as DeviceHeap.
class DeviceSlot {
 public:
  // `number`: of the device in its allocator, which has opened `opened` others before. Errors: as
  // open_device(); invalid_input where the recording can't be written; invalid_argument where
  // addresses are to be fixed on too many devices.
  static Result<std::unique_ptr<DeviceSlot>> open(const Config& config, int number, int opened);
  static Result<std::unique_ptr<DeviceSlot>> open(const Config& config, int number, int opened,
                                                  std::unique_ptr<Device> device);
  static Result<std::unique_ptr<DeviceSlot>> open(const Config& config, int number, int opened,
                                                  Device& device);

  Device& device() { return *device_; }
  DeviceHeap& heap() { return *heap_; }
  // What the heap calls: the device, metered.
  const MeteredDevice& calls() const { return *calls_; }
  Recordings& recordings() { return *recordings_; }
  // Opened for the first that asks.
  GraphPool& plain_pool();

  // With WEIR_VALIDATE, checks the whole heap after `call`, and aborts if an invariant is broken.
  void checked_after(std::string_view call) {
    if (validates_) abort_if_broken(call);
  }

 private:
  DeviceSlot() = default;
  void listen(const Config& config);
  Status make_heap(const Config& config, int opened);
  void abort_if_broken(std::string_view call);

  // In order of need: the heap goes first, and what it uses after it.
  std::unique_ptr<Device> owned_;
  Device* device_ = nullptr;
  std::optional<MeteredDevice> calls_;  // of device_
  FanOutSink sinks_;
  StorySink* story_ = nullptr;  // in sinks_; null: not kept
  std::unique_ptr<DeviceHeap> heap_;
  std::once_flag plain_pool_opened_;
  std::unique_ptr<GraphPool> plain_pool_;
  std::unique_ptr<Recordings> recordings_;
  bool validates_ = false;
};

}  // namespace weir
