// SPDX-License-Identifier: Apache-2.0
#include "suite/program.h"

#include <algorithm>

namespace weir::suite {

void add_needs(Program& program) {
  Bytes live, aligned, most_aligned;
  program.live.clear();
  program.live.reserve(program.calls.size());
  program.needs = {};
  for (const ProgramCall& call : program.calls) {
    const Bytes grains = round_up(Bytes{call.bytes}, kGrain);
    const Bytes least = round_up(Bytes{call.bytes}, kLeastAlignment);
    if (call.kind == ProgramCall::Kind::allocate) {
      live += grains;
      aligned += least;
    } else if (call.kind == ProgramCall::Kind::free) {
      live -= grains;
      aligned -= least;
    }
    program.needs.peak_live = std::max(program.needs.peak_live, live);
    most_aligned = std::max(most_aligned, aligned);
    program.live.push_back(live.count);
  }
  program.needs.lower_bound = round_up(most_aligned, kDriverPage);
}

}  // namespace weir::suite
