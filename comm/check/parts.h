// The parts of a machine that are read from its files.
#pragma once

#include "comm/check/tree.h"
#include "weir/comm/check.h"

namespace weir::check {

// GPUs, NVSwitches, the driver and its modules.
void read_gpus(Tree& tree, Machine& machine);
void read_rdma(Tree& tree, Machine& machine);
void read_interfaces(Tree& tree, Machine& machine);

}  // namespace weir::check
