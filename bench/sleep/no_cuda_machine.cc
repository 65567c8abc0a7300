// SPDX-License-Identifier: Apache-2.0
#include "bench/sleep/machine.h"

namespace weir::sleep_bench {

std::unique_ptr<Machine> gpu() { return nullptr; }

}  // namespace weir::sleep_bench
