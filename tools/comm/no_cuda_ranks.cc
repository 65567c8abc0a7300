// SPDX-License-Identifier: Apache-2.0
// A build without the CUDA compiler.
#include "comm/ranks.h"

namespace weir {

Result<OpenRanks> cuda_ranks(const Environment& environment, int /*ranks*/) {
  const Result<Launch> launch = find_launch(environment);
  if (!launch) return launch.error();
  return Error(
      ErrorCode::unavailable,
      "this build has no kernels for GPUs: install the CUDA toolkit with its compiler, and "
      "configure again; or use --device sim");
}

}  // namespace weir
