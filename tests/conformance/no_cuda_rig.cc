// SPDX-License-Identifier: Apache-2.0
// The CUDA device's place in the suite, in a build without the CUDA toolkit.
#include "tests/conformance/rig.h"
#include "weir/cuda_device.h"

namespace weir::conformance {

RigOrReason make_cuda_rig() { return {nullptr, CudaDevice::open(0).error().message()}; }

}  // namespace weir::conformance
