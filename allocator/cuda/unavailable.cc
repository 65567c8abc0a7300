// SPDX-License-Identifier: Apache-2.0
// CudaDevice in a build without the CUDA toolkit.
#include "weir/cuda_device.h"

namespace weir {
namespace {

Error unavailable() {
  return {ErrorCode::unavailable,
          "this build of Weir has no CUDA support: configure it again with the CUDA toolkit's "
          "headers installed, or use the simulated device"};
}

}  // namespace

Result<int> CudaDevice::count() { return unavailable(); }
Result<int> CudaDevice::current() { return unavailable(); }
Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int) { return unavailable(); }

}  // namespace weir
