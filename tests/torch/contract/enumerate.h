// SPDX-License-Identifier: Apache-2.0
// All short programs of the form: create a tensor, use it on another stream, drop it, disturb.
#pragma once

#include <vector>

#include "tests/torch/contract/program.h"

namespace weir::contract {

// In a fixed order; each is legal, and is named after its four parts.
std::vector<Program> enumerated_programs();

}  // namespace weir::contract
