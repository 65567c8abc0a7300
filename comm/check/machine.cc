#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>

#include "comm/check/parts.h"
#include "comm/check/tree.h"
#include "comm/numbers.h"
#include "weir/comm/check.h"

namespace weir {
namespace check {
namespace {

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// A line of /proc/self/limits: the name, then the soft limit.
std::optional<std::uint64_t> limit_in(const std::string& limits, std::string_view name) {
  const std::size_t at = limits.find(name);
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = trimmed(std::string_view(limits).substr(at + name.size()));
  const std::string_view soft = rest.substr(0, rest.find_first_of(" \t\n"));
  if (soft == "unlimited") return kUnlimited;
  const std::optional<std::int64_t> number = number_in(soft);
  if (!number || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

void read_limits(Tree& tree, Machine& machine) {
  const std::string limits = tree.text("/proc/self/limits").value_or("");
  machine.locked_memory = limit_in(limits, "Max locked memory");
  machine.open_files = limit_in(limits, "Max open files");
}

// The size that /dev/shm was mounted with, for a machine that can't be asked.
std::optional<SharedMemory> mounted_shm(Tree& tree) {
  std::optional<SharedMemory> shm;
  for (const std::string& line : split(tree.text("/proc/mounts").value_or(""), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() < 4 || words[1] != "/dev/shm") continue;
    for (const std::string& option : split(words[3], ',')) {
      if (!option.starts_with("size=") || !option.ends_with('k')) continue;
      const auto size = number_in(std::string_view(option).substr(5, option.size() - 6));
      if (size && *size >= 0 && *size < (std::int64_t{1} << 50)) {
        shm = SharedMemory{Bytes{static_cast<std::uint64_t>(*size) * 1024}, std::nullopt};
      }
    }
  }
  return shm;
}

void read_kernel(Tree& tree, Machine& machine) {
  machine.kernel = tree.text("/proc/sys/kernel/osrelease").value_or("");
  machine.iommu_groups = static_cast<int>(tree.list("/sys/kernel/iommu_groups").size());
  const std::string line = tree.text("/proc/cmdline").value_or("");
  const std::vector<std::string> words = split(line, ' ');
  machine.iommu_passthrough = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "iommu=pt" || word == "iommu.passthrough=1";
  });
}

void ask_nvml(Nvml& nvml, Machine& machine) {
  const Result<int> count = nvml.count();
  if (!count) {
    machine.no_nvml = count.error().message();
    return;
  }
  NvmlFacts facts;
  for (int i = 0; i < *count; ++i) {
    NvmlGpu gpu;
    if (Result<std::string> name = nvml.name(i)) gpu.name = *name;
    if (Result<std::string> pci = nvml.pci(i)) gpu.pci = *pci;
    for (int link = 0; link < kMaxNvLinks; ++link) {
      const Result<bool> active = nvml.link_active(i, link);
      if (!active) continue;
      ++gpu.links;
      if (!*active) continue;
      ++gpu.active_links;
      if (gpu.link_version) continue;
      if (const Result<int> version = nvml.link_version(i, link)) gpu.link_version = *version;
    }
    facts.gpus.push_back(std::move(gpu));
    for (int j = 0; j < i; ++j) {
      const Result<bool> forth = nvml.peer_access(j, i), back = nvml.peer_access(i, j);
      if ((forth && !*forth) || (back && !*back)) facts.no_peer_access.emplace_back(j, i);
    }
  }
  machine.nvml = std::move(facts);
}

void probe(const MachineProbes& probes, const std::string& shm, Machine& machine) {
  machine.no_nvml = machine.no_nccl = "not asked: it would speak of this machine, not of the root";
  if (probes.nvml) {
    machine.no_nvml.clear();
    const Result<std::unique_ptr<Nvml>> nvml = probes.nvml();
    if (nvml) {
      ask_nvml(**nvml, machine);
    } else {
      machine.no_nvml = nvml.error().message();
    }
  }
  if (probes.nccl) {
    const Result<std::string> version = probes.nccl();
    machine.nccl = version ? *version : "";
    machine.no_nccl = version ? "" : version.error().message();
  }
  if (probes.space) {
    if (const std::optional<SharedMemory> space = probes.space(shm)) machine.shm = space;
  }
}

}  // namespace
}  // namespace check

bool Machine::has_dma_buf() const {
  int major = 0, minor = 0;
  if (!open_driver || std::sscanf(kernel.c_str(), "%4d.%4d", &major, &minor) != 2) return false;
  return major > 5 || (major == 5 && minor >= 12);
}

bool Machine::has_active_rdma() const {
  for (const RdmaDevice& device : rdma) {
    for (const RdmaPort& port : device.ports) {
      if (port.state == "ACTIVE") return true;
    }
  }
  return false;
}

MachineProbes probes_of_this_machine(const std::string& nccl_library) {
  MachineProbes probes;
  probes.nvml = [] { return load_nvml(); };
  probes.nccl = [nccl_library] { return nccl_version_of(nccl_library); };
  probes.space = [](const std::string& path) -> std::optional<SharedMemory> {
    struct statvfs space {};
    if (::statvfs(path.c_str(), &space) != 0) return std::nullopt;
    return SharedMemory{Bytes{space.f_blocks} * space.f_frsize,
                        Bytes{space.f_bavail} * space.f_frsize};
  };
  return probes;
}

Machine read_machine(const std::string& root, const MachineProbes& probes) {
  Machine machine;
  machine.root = root;
  check::Tree tree(root.substr(0, root.find_last_not_of('/') + 1));
  check::read_gpus(tree, machine);
  check::read_rdma(tree, machine);
  check::read_interfaces(tree, machine);
  check::read_kernel(tree, machine);
  check::read_limits(tree, machine);
  machine.shm = check::mounted_shm(tree);
  check::probe(probes, tree.at("/dev/shm"), machine);
  machine.unread = tree.unread();
  return machine;
}

}  // namespace weir
