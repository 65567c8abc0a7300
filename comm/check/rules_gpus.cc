#include <algorithm>

#include "comm/check/rules.h"

namespace weir::check {
namespace {

constexpr Bytes kEnoughShared = 1_GiB;
constexpr Bytes kEnoughFree = 256_MiB;
constexpr std::uint64_t kEnoughFiles = 4096;

bool is_set(const Settings& settings, std::string_view name) {
  return settings.number(name).value_or(0) != 0;
}

}  // namespace

void driver_missing(const Machine& machine, const Settings&, Findings& findings) {
  if (machine.gpus.empty() || !machine.driver.empty()) return;
  say(findings, Severity::error, "GPUs are on the bus, and no NVIDIA driver is loaded",
      "Nothing can use them: /proc/driver/nvidia/version is not there.",
      "Install or load the driver; in a container, start it with the NVIDIA container toolkit.");
}

void p2p_disabled_and_set(const Machine&, const Settings& settings, Findings& findings) {
  if (!is_set(settings, "NCCL_P2P_DISABLE") || settings.find("NCCL_P2P_LEVEL") == nullptr) return;
  say(findings, Severity::warning, "NCCL_P2P_DISABLE=1, but " + shown(settings, "NCCL_P2P_LEVEL"),
      "The first wins: the level has no effect, and GPUs do not reach each other directly.",
      "Leave NCCL_P2P_DISABLE out to use direct access.");
}

void no_direct_way(const Machine& machine, const Settings& settings, Findings& findings) {
  if (!is_set(settings, "NCCL_P2P_DISABLE") || !is_set(settings, "NCCL_SHM_DISABLE")) return;
  say(findings, Severity::warning, "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1",
      std::string("GPUs of one machine talk through the network, as if each were a node") +
          (machine.gpus.size() > 1 ? ": fine for a test, slow for work." : "."),
      "Leave both out, unless it is a test of the network.");
}

void peer_access(const Machine& machine, const Settings& settings, Findings& findings) {
  if (!machine.nvml || machine.nvml->no_peer_access.empty() || is_set(settings, "NCCL_P2P_DISABLE"))
    return;
  const std::size_t count = machine.nvml->gpus.size(), all = count * (count - 1) / 2;
  const auto& apart = machine.nvml->no_peer_access;
  std::string pairs;
  for (std::size_t i = 0; i < apart.size() && i < 8; ++i) {
    pairs += (i > 0 ? ", " : "") + std::to_string(apart[i].first) + "-" +
             std::to_string(apart[i].second);
  }
  if (apart.size() > 8) pairs += ", ...";
  say(findings, Severity::warning,
      apart.size() == all ? "No GPU can read another's memory"
                          : "Some pairs of GPUs can't read each other's memory: " + pairs,
      "Between them NCCL goes through the host's memory, much slower; buffers of theirs can't be "
      "registered.",
      "GPUs with NVLink: look at nvidia-smi topo -p2p r, and at the fabric manager. Without: the "
      "board, the IOMMU or a virtual machine may forbid it.");
}

void nvlink_down(const Machine& machine, const Settings&, Findings& findings) {
  if (!machine.nvml) return;
  int most = 0;
  for (const NvmlGpu& gpu : machine.nvml->gpus) most = std::max(most, gpu.active_links);
  for (std::size_t i = 0; i < machine.nvml->gpus.size(); ++i) {
    const NvmlGpu& gpu = machine.nvml->gpus[i];
    if (gpu.active_links == most) continue;
    say(findings, Severity::warning,
        "GPU " + std::to_string(i) + " has " + std::to_string(gpu.active_links) +
            " active NVLinks, another GPU has " + std::to_string(most),
        "Collectives are as fast as the slowest link of a ring.",
        "Look at nvidia-smi nvlink -s and at the kernel's log for Xid errors.");
  }
}

void pcie_link_narrow(const Machine& machine, const Settings&, Findings& findings) {
  for (const PciGpu& gpu : machine.gpus) {
    if (!gpu.link_width || !gpu.max_link_width || *gpu.link_width < 1) continue;
    if (*gpu.link_width >= *gpu.max_link_width) continue;
    say(findings, Severity::warning,
        "GPU " + gpu.pci + " has " + std::to_string(*gpu.link_width) + " of " +
            std::to_string(*gpu.max_link_width) + " PCIe lanes",
        "Copies to the host and to network cards are slower by as much.",
        "Seat the card again, or look for a slot with all lanes.");
  }
}

void nvls_without_nvswitch(const Machine& machine, const Settings& settings, Findings& findings) {
  if (settings.number("NCCL_NVLS_ENABLE") != 1 || machine.nvswitches > 0) return;
  say(findings, Severity::warning, "NCCL_NVLS_ENABLE=1, and no NVSwitch is seen here",
      "NVLink SHARP is a function of NVSwitch. Forced, NCCL may fail where it would do without.",
      "Leave it out (2: use it if it is there).");
}

void nvls_disabled(const Machine&, const Settings& settings, Findings& findings) {
  const std::string* algorithms = settings.find("NCCL_ALGO");
  if (settings.number("NCCL_NVLS_ENABLE") != 0 || algorithms == nullptr) return;
  const DeviceList list(*algorithms);
  const bool only =
      !list.excludes() && !list.entries().empty() &&
      std::all_of(list.entries().begin(), list.entries().end(), [](const auto& entry) {
        return entry.port < 0 && entry.name.starts_with("NVLS");
      });
  if (!only) return;
  say(findings, Severity::error, shown(settings, "NCCL_ALGO") + ", but NCCL_NVLS_ENABLE=0",
      "The only algorithms allowed are those that are off: no collective can run.",
      "Leave one of them out.");
}

void iommu(const Machine& machine, const Settings&, Findings& findings) {
  if (machine.iommu_groups == 0 || machine.iommu_passthrough) return;
  if (machine.gpus.size() < 2 && (machine.gpus.empty() || machine.rdma.empty())) return;
  say(findings, Severity::note, "The IOMMU is on, and not passed through",
      "Traffic between devices on PCIe may be sent through the CPU, or hang; NVLink is not "
      "concerned.",
      "On bare metal: iommu=pt on the kernel's command line, and ACS off on the PCIe switches "
      "(lspci -vvv shows ACSCtl). In a virtual machine both are as they must be.");
}

void shared_memory(const Machine& machine, const Settings& settings, Findings& findings) {
  if (machine.gpus.size() < 2 || is_set(settings, "NCCL_SHM_DISABLE")) return;
  const char* remedy =
      "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory on "
      "/dev/shm; else mount -o remount,size=8g /dev/shm.";
  if (!machine.shm) {
    say(findings, Severity::warning, "/dev/shm is no file system of its own",
        "NCCL puts what processes of a machine share there.", remedy);
    return;
  }
  const bool is_small = machine.shm->size < kEnoughShared;
  const bool is_full = machine.shm->free && *machine.shm->free < kEnoughFree;
  if (!is_small && !is_full) return;
  say(findings, Severity::warning,
      "/dev/shm has " + std::to_string(machine.shm->size / 1_MiB) + " MiB" +
          (machine.shm->free ? ", " + std::to_string(*machine.shm->free / 1_MiB) + " MiB free"
                             : ""),
      "NCCL keeps buffers there for each pair of processes: start-up fails with \"No space left on "
      "device\", or a bus error ends a process.",
      is_small ? remedy : "Remove what dead processes left there (nccl-*, torch_*).");
}

void open_files(const Machine& machine, const Settings&, Findings& findings) {
  if (machine.gpus.empty() || !machine.open_files || *machine.open_files >= kEnoughFiles) return;
  say(findings, Severity::note,
      "A process may have " + std::to_string(*machine.open_files) + " files open",
      "NCCL opens sockets to each peer and files for shared memory: many ranks need thousands.",
      "Raise the limit: ulimit -n 65536, or LimitNOFILE= of the service.");
}

}  // namespace weir::check
