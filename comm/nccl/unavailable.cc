// SPDX-License-Identifier: Apache-2.0
// A build without NCCL's header.
#include "weir/comm/nccl.h"

namespace weir {

Result<std::unique_ptr<Nccl>> load_nccl(int) {
  return Error(ErrorCode::unavailable,
               "this build has no NCCL: install the CUDA toolkit and NCCL's header, nccl.h, and "
               "configure again");
}

}  // namespace weir
