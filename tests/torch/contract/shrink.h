// SPDX-License-Identifier: Apache-2.0
// The shortest program found that still fails.
#pragma once

#include <string>

#include "tests/torch/contract/program.h"
#include "tests/torch/contract/runner.h"

namespace weir::contract {

// Leaves out steps while the program stays legal, runs cleanly on the model of the native
// allocator, and fails in the same way on Weir.
Program shrink(Program program, Failure::Kind failure, const RunOptions& options = {});
// For a person: the failure, and the shrunk program.
std::string report(const Program& program, const Failure& failure, const RunOptions& options);

}  // namespace weir::contract
