// SPDX-License-Identifier: Apache-2.0
// In a build without a CUDA compiler.
#include "tests/gpu/gpu.h"

namespace weir::test {

Result<std::unique_ptr<Gpu>> open_cuda_gpu(int) {
  return Error(ErrorCode::unavailable, "this was built without a CUDA compiler");
}

}  // namespace weir::test
