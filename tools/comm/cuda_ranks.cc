// Ranks on real GPUs are not written yet: what says so, and where they will be opened.
#include "comm/ranks.h"

namespace weir {

Result<std::unique_ptr<Ranks>> open_cuda_ranks(Environment& environment,
                                               const RanksOptions& /*options*/) {
  const Result<Launch> launch = find_launch(environment);
  if (!launch) return launch.error();
  return Error(ErrorCode::unavailable, "this weir has no ranks on real GPUs yet (" +
                                           launch->describe() + "): use --device sim");
}

}  // namespace weir
