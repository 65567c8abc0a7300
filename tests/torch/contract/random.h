// SPDX-License-Identifier: Apache-2.0
// Random legal programs of some 10 to 60 steps, with a liking for what has gone wrong before: a
// long kernel ahead of each reader on another stream, a drop right after the reader was queued, and
// then somebody who may be given the memory.
#pragma once

#include <cstdint>

#include "tests/torch/contract/program.h"

namespace weir::contract {

struct RandomOptions {
  bool flags = false;        // kernels may wait for flags that the host sets later
  bool omit_orders = false;  // leave out the orders that make it legal: for tests of the checks
};

// The same seed and options give the same program, on every machine.
Program random_program(std::uint64_t seed, const RandomOptions& options = {});

}  // namespace weir::contract
