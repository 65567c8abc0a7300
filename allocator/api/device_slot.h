// One device of an allocator: the device, its heap, and who listens to the heap's events.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "api/event_sinks.h"
#include "weir/config.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/result.h"
#include "weir/trace_recorder.h"

namespace weir {

// Owns the heap, and the device if it was given one to own. Threads: as DeviceHeap.
class DeviceSlot {
 public:
  // `number`: of the device in its allocator. Errors: as open_device(), and invalid_input where the
  // trace file can't be written.
  static Result<std::unique_ptr<DeviceSlot>> open(const Config& config, int number);
  static Result<std::unique_ptr<DeviceSlot>> open(const Config& config, int number,
                                                  std::unique_ptr<Device> device);
  static Result<std::unique_ptr<DeviceSlot>> open(const Config& config, int number, Device& device);
  ~DeviceSlot();

  Device& device() { return *device_; }
  DeviceHeap& heap() { return *heap_; }

  // With WEIR_VALIDATE, checks the whole heap after `call`, and aborts if an invariant is broken.
  void checked_after(std::string_view call) {
    if (validates_) abort_if_broken(call);
  }

 private:
  DeviceSlot() = default;
  Status listen(const Config& config, int number);
  Status make_heap(const Config& config);
  void abort_if_broken(std::string_view call);

  // In order of need: the heap goes first, and what it uses after it.
  std::unique_ptr<Device> owned_;
  Device* device_ = nullptr;
  FanOutSink sinks_;
  StorySink* story_ = nullptr;         // in sinks_; null: not kept
  TraceRecorder* recorder_ = nullptr;  // in sinks_; null: not recording
  std::unique_ptr<DeviceHeap> heap_;
  bool validates_ = false;
};

// The trace file of device `number`: `path` itself for device 0, "run.1.trace.gz" for device 1 of
// "run.trace.gz".
std::string record_path(const std::string& path, int number);

}  // namespace weir
