// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/check_machines.h"

namespace weir::test {

void MachineTree::rdma(const std::string& name, const std::string& state,
                       const std::string& layer) const {
  const std::string path = "/sys/class/infiniband/" + name;
  write(path + "/ports/1/state", state + "\n");
  write(path + "/ports/1/link_layer", layer + "\n");
}

void MachineTree::make_eight_gpus() const {
  for (int i = 0; i < 8; ++i) {
    const std::string number = std::to_string(i);
    write("/proc/driver/nvidia/gpus/0000:" + number + "8:00.0/information", "Model: NVIDIA H200\n");
    rdma("mlx5_" + number, "4: ACTIVE", "InfiniBand");
  }
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  "
        "(root@host)\nGCC version:  gcc version 12.3.0\n");
  write("/proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nnvidia 9000000 1 - Live 0x0\n");
  write("/proc/sys/kernel/osrelease", "6.8.0-60-generic\n");
}

Machine eight_gpus() {
  Machine machine{.root = "/", .gpus = 8, .kernel = "6.8.0-60-generic"};
  for (int i = 0; i < 8; ++i) {
    machine.rdma.push_back({.device = "mlx5_" + std::to_string(i),
                            .number = 1,
                            .state = "ACTIVE",
                            .link_layer = "InfiniBand"});
  }
  machine.open_driver = machine.peermem = true;
  machine.nccl = "2.28.9";
  return machine;
}

Settings settings_of(const EnvironmentVariables& environment) {
  return read_settings("/nowhere", environment, "");
}

}  // namespace weir::test
