// SPDX-License-Identifier: Apache-2.0
// Where Weir was built without the CUDA toolkit.
#include "replay/replay_device.h"

namespace weir {

Result<std::unique_ptr<ReplayDevice>> make_cuda_replay_device(bool /*verify*/) {
  return Error(ErrorCode::unavailable,
               "this weir was built without the CUDA toolkit: use --device sim, or build it where "
               "the toolkit is installed");
}

}  // namespace weir
