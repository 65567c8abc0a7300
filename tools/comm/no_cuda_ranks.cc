// SPDX-License-Identifier: Apache-2.0
// A build without the CUDA compiler.
#include "comm/ranks.h"

namespace weir {

OpenRanks cuda_ranks(const Environment& environment, int /*ranks*/) {
  (void)need(find_launch(environment));
  throw Exception(
      ErrorCode::unavailable,
      "this build has no kernels for GPUs: install the CUDA toolkit with its compiler, and "
      "configure again; or use --device sim");
}

}  // namespace weir
