// SPDX-License-Identifier: Apache-2.0
// What the benchmarks run on: a device with streams.
#pragma once

#include <memory>
#include <vector>

#include "suite/null_device.h"
#include "weir/device.h"
#include "weir/result.h"

namespace weir::bench {

class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  virtual Device& device() = 0;
  // The caller's handle of stream `number`, from 0: the same one each time. Not thread-safe.
  virtual void* stream_handle(int number) = 0;

  Stream stream(int number) { return device().stream(stream_handle(number)).value(); }
};

class NullTarget final : public Target {
 public:
  Device& device() override { return device_; }
  void* stream_handle(int number) override { return NullDevice::stream_handle(number); }

 private:
  NullDevice device_;
};

// The first GPU. Errors: unavailable (a build without the CUDA toolkit; no driver, no GPU); device.
Result<std::unique_ptr<Target>> open_cuda_target();

}  // namespace weir::bench
