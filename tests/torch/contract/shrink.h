// The shortest program found that still fails.
#pragma once

#include <functional>
#include <optional>

#include "tests/torch/contract/program.h"
#include "tests/torch/contract/runner.h"

namespace weir::contract {

// Leaves out steps while the program stays legal, runs cleanly on the model of the native
// allocator, and fails in the same way.
Program shrink(Program program, Failure::Kind kind, const RunOptions& options = {});

}  // namespace weir::contract
