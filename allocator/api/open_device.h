// SPDX-License-Identifier: Apache-2.0
// Opening devices by kind and number: the one place of the API that knows which devices there are.
#pragma once

#include <memory>

#include "weir/config.h"
#include "weir/device.h"
#include "weir/result.h"

namespace weir {

// Errors of all three: unavailable (no driver, no such device, a build without CUDA); device.
Result<int> count_devices(DeviceKind kind);
Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int number);

// The number of the device that is current in the calling thread.
Result<int> current_device(DeviceKind kind);

}  // namespace weir
