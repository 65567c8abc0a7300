// SPDX-License-Identifier: Apache-2.0
#include "api/open_device.h"

#include <string>
#include <utility>

#include "weir/cuda_device.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

// Someone who has no GPU should learn that Weir can be tried without one.
Error with_hint(const Error& error) {
  if (error.code() != ErrorCode::unavailable) return error;
  return {error.code(),
          error.message() + " (WEIR_DEVICE=sim; in C and C++, since PyTorch needs a GPU)"};
}

}  // namespace

Result<int> count_devices(DeviceKind kind) {
  if (kind == DeviceKind::sim) return 1;
  Result<int> count = CudaDevice::count();
  if (!count.ok()) return with_hint(count.error());
  return count;
}

Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int number) {
  if (kind == DeviceKind::sim) return std::unique_ptr<Device>(std::make_unique<SimDevice>());
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(number);
  if (!device.ok()) return with_hint(device.error());
  return std::unique_ptr<Device>(std::move(device).value());
}

Result<int> current_device(DeviceKind kind) {
  if (kind == DeviceKind::sim) return 0;
  return CudaDevice::current();
}

}  // namespace weir
