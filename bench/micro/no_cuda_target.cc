// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/target.h"

namespace weir::bench {

Result<std::unique_ptr<Target>> open_cuda_target() {
  return Error(ErrorCode::unavailable, "this build has no CUDA toolkit");
}

}  // namespace weir::bench
