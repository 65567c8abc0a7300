#include "tests/comm/check_machines.h"

#include <cstdio>

namespace weir::test {
namespace {

std::string pci_of(int bus) {
  char text[16];
  std::snprintf(text, sizeof text, "0000:%02x:00.0", static_cast<unsigned>(bus) & 0xFF);
  return text;
}

}  // namespace

void MachineTree::gpu(const std::string& pci, int numa_node, const std::string& lanes) const {
  const std::string device = "/sys/bus/pci/devices/" + pci;
  write(device + "/vendor", "0x10de\n");
  write(device + "/class", "0x030200\n");
  write(device + "/numa_node", std::to_string(numa_node) + "\n");
  write(device + "/current_link_speed", "32.0 GT/s PCIe\n");
  write(device + "/current_link_width", lanes + "\n");
  write(device + "/max_link_width", "16\n");
  write("/proc/driver/nvidia/gpus/" + pci + "/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nBus Location: \t " + pci + "\n");
}

void MachineTree::rdma(const std::string& name, const std::string& pci, int numa_node,
                       const std::string& state, const std::string& layer) const {
  const std::string device = "/sys/devices/pci/" + pci, path = "/sys/class/infiniband/" + name;
  write(device + "/numa_node", std::to_string(numa_node) + "\n");
  write(path + "/fw_ver", "28.39.1002\n");
  link(path + "/device", at(device));
  write(path + "/ports/1/state", state + "\n");
  write(path + "/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  write(path + "/ports/1/link_layer", layer + "\n");
  write(path + "/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
  write(path + "/ports/1/gid_attrs/types/0", "IB/RoCE v1\n");
  if (layer != "Ethernet") return;
  write(path + "/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
  write(path + "/ports/1/gid_attrs/types/3", "RoCE v2\n");
  write(path + "/ports/1/gids/4", "0000:0000:0000:0000:0000:0000:0000:0000\n");
  write(path + "/ports/1/gid_attrs/types/4", "RoCE v2\n");
}

void MachineTree::interface(const std::string& name, bool up, bool is_device,
                            const std::string& speed, int mtu) const {
  const std::string path = "/sys/class/net/" + name;
  write(path + "/operstate", up ? "up\n" : "down\n");
  write(path + "/speed", speed + "\n");
  write(path + "/mtu", std::to_string(mtu) + "\n");
  if (is_device) folder(path + "/device");
}

void MachineTree::make_eight_gpus() const {
  for (int i = 0; i < 8; ++i) {
    gpu(pci_of(0x18 + 16 * i), i / 4);
    rdma("mlx5_" + std::to_string(i), pci_of(0x1a + 16 * i), i / 4, "4: ACTIVE", "InfiniBand");
    write("/sys/kernel/iommu_groups/" + std::to_string(i) + "/type", "identity\n");
  }
  for (int i = 0; i < 4; ++i) write("/dev/nvidia-nvswitch" + std::to_string(i), "");
  write("/dev/nvidia-nvswitchctl", "");
  write("/dev/gdrdrv", "");
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  "
        "(root@host)\nGCC version:  gcc version 12.3.0\n");
  write("/proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nnvidia 9000000 1 - Live 0x0\n");
  write("/proc/sys/kernel/osrelease", "6.8.0-60-generic\n");
  write("/proc/cmdline", "ro quiet iommu=pt\n");
  write("/proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,size=67108864k,inode64 0 0\n");
  write("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1048576              1048576              files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n");
  interface("eth0", true, true, "100000", 9000);
  interface("lo", false, false, "-1", 65536);
  write("/sys/class/net/lo/operstate", "unknown\n");
  write("/sys/class/net/lo/carrier", "1\n");
  write("/sys/class/net/bonding_masters", "\n");
}

Machine eight_gpus() {
  Machine machine{.root = "/"};
  NvmlFacts facts;
  for (int i = 0; i < 8; ++i) {
    machine.gpus.push_back({.pci = pci_of(0x18 + 16 * i),
                            .model = "NVIDIA H200",
                            .numa_node = i / 4,
                            .link_speed = "32.0 GT/s PCIe",
                            .link_width = 16,
                            .max_link_width = 16});
    facts.gpus.push_back({machine.gpus.back().pci, "NVIDIA H200", 18, 18, 6});
    machine.rdma.push_back({.name = "mlx5_" + std::to_string(i),
                            .pci = pci_of(0x1a + 16 * i),
                            .firmware = "28.39.1002",
                            .numa_node = i / 4,
                            .ports = {{.number = 1,
                                       .state = "ACTIVE",
                                       .rate = "400 Gb/sec (4X NDR)",
                                       .link_layer = "InfiniBand",
                                       .gids = {{0, "IB/RoCE v1"}}}}});
  }
  machine.nvml = std::move(facts);
  machine.nvswitches = 4;
  machine.kernel = "6.8.0-60-generic";
  machine.driver = "575.57.08";
  machine.open_driver = machine.peermem = machine.gdrcopy = true;
  machine.interfaces = {{"eth0", true, false, 100000, 9000}, {"lo", true, true, {}, 65536}};
  machine.shm = SharedMemory{64_GiB, 60_GiB};
  machine.locked_memory = ~std::uint64_t{0};
  machine.open_files = 1048576;
  machine.iommu_groups = 8;
  machine.iommu_passthrough = true;
  machine.nccl = "2.28.9";
  return machine;
}

Settings settings_of(const EnvironmentVariables& environment) {
  return read_settings("/nowhere", environment, "");
}

}  // namespace weir::test
