// SPDX-License-Identifier: Apache-2.0
// The shortest program found that still fails.
#pragma once

#include <functional>

#include "tests/torch/contract/program.h"
#include "tests/torch/contract/runner.h"

namespace weir::contract {

using IsSameFailure = std::function<bool(const Program&, const Failure&)>;

// Leaves out steps while the program stays legal, runs cleanly on the model of the native
// allocator, and fails in the same way on Weir.
Program shrink(Program program, const IsSameFailure& same, const RunOptions& options = {});

}  // namespace weir::contract
