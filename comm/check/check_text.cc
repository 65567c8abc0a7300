#include <fmt/format.h>

#include <algorithm>

#include "comm/check/layout.h"
#include "comm/check/variables.h"
#include "weir/comm/check.h"

namespace weir {
namespace {

using check::paragraph;
using check::table;

constexpr std::size_t kIndent = 18;       // of what follows a name
constexpr std::size_t kMostValue = 2000;  // bytes of a value that are shown

std::string line(const char* name, const std::string& text) {
  return paragraph(fmt::format("  {:<{}}", name, kIndent - 2), text, kIndent);
}

std::string or_dash(const std::optional<int>& number) {
  return number ? fmt::format("{}", *number) : "-";
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string amount(std::uint64_t bytes) {
  if (bytes == ~std::uint64_t{0}) return "unlimited";
  if (bytes >= (std::uint64_t{1} << 30)) {
    return fmt::format("{:.4g} GiB", static_cast<double>(bytes) / (1 << 30));
  }
  if (bytes >= (1 << 20)) return fmt::format("{:.4g} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.4g} KiB", static_cast<double>(bytes) / 1024);
}

std::string gpus_text(const Machine& machine) {
  if (machine.gpus.empty()) return line("GPUs", "none");
  std::string text = line("GPUs", fmt::format("{}", machine.gpus.size()));
  std::vector<std::vector<std::string>> rows{{"GPU", "PCI", "NUMA", "lanes", "link", "model"}};
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const PciGpu& gpu = machine.gpus[i];
    rows.push_back({fmt::format("{}", i), gpu.pci, or_dash(gpu.numa_node),
                    fmt::format("{}/{}", or_dash(gpu.link_width), or_dash(gpu.max_link_width)),
                    or_dash(gpu.link_speed), or_dash(gpu.model)});
  }
  return text + table(std::move(rows));
}

std::string nvml_text(const Machine& machine) {
  if (!machine.nvml) return line("NVLink", "unknown; NVML: " + machine.no_nvml);
  const NvmlFacts& facts = *machine.nvml;
  if (facts.gpus.empty()) return line("NVLink", "NVML knows no GPU");
  std::vector<std::vector<std::string>> rows{{"NVML", "PCI", "NVLinks", "version", "name"}};
  for (std::size_t i = 0; i < facts.gpus.size(); ++i) {
    const NvmlGpu& gpu = facts.gpus[i];
    rows.push_back({fmt::format("{}", i), gpu.pci,
                    fmt::format("{} of {}", gpu.active_links, gpu.links), or_dash(gpu.link_version),
                    gpu.name});
  }
  const std::size_t pairs = facts.gpus.size() * (facts.gpus.size() - 1) / 2;
  return table(std::move(rows)) +
         line("Peer access", pairs == 0 ? "one GPU"
                                        : fmt::format("{} of {} pairs of GPUs",
                                                      pairs - facts.no_peer_access.size(), pairs));
}

std::string rdma_text(const Machine& machine) {
  if (machine.rdma.empty()) return line("RDMA devices", "none");
  std::string text = line("RDMA devices", fmt::format("{}", machine.rdma.size()));
  std::vector<std::vector<std::string>> rows{
      {"device", "port", "state", "layer", "rate", "NUMA", "PCI", "firmware"}};
  for (const RdmaDevice& device : machine.rdma) {
    for (const RdmaPort& port : device.ports) {
      rows.push_back({device.name, fmt::format("{}", port.number), or_dash(port.state),
                      or_dash(port.link_layer), or_dash(port.rate), or_dash(device.numa_node),
                      or_dash(device.pci), or_dash(device.firmware)});
    }
    if (device.ports.empty()) rows.push_back({device.name, "none"});
  }
  return text + table(std::move(rows));
}

std::string interfaces_text(const Machine& machine) {
  if (machine.interfaces.empty()) return line("Interfaces", "none");
  std::vector<std::vector<std::string>> rows{{"interface", "state", "Mbit/s", "MTU", "kind"}};
  for (const NetworkInterface& interface : machine.interfaces) {
    rows.push_back({interface.name, interface.up ? "up" : "down", or_dash(interface.speed),
                    or_dash(interface.mtu), interface.is_virtual ? "virtual" : "device"});
  }
  return line("Interfaces", fmt::format("{}", machine.interfaces.size())) + table(std::move(rows));
}

std::string gpu_direct_of(const Machine& machine) {
  return fmt::format(
      "nvidia_peermem {}, dma-buf {}, gdrcopy {}", machine.peermem ? "loaded" : "not loaded",
      machine.has_dma_buf() ? "possible" : "not possible", machine.gdrcopy ? "there" : "not there");
}

std::string system_text(const Machine& machine) {
  std::string text = line("Kernel", or_dash(machine.kernel));
  text += line("Driver", machine.driver.empty()
                             ? "none"
                             : fmt::format("{}{}", machine.driver,
                                           machine.open_driver ? ", open kernel modules" : ""));
  text += line("NCCL", machine.nccl.empty() ? "none: " + machine.no_nccl : machine.nccl);
  text += line("NVSwitches", fmt::format("{}{}", machine.nvswitches,
                                         machine.imex_channels ? ", IMEX channels" : ""));
  text += line("GPUDirect RDMA", gpu_direct_of(machine));
  text += line("IOMMU", machine.iommu_groups == 0
                            ? "off, or not seen here"
                            : fmt::format("{} groups{}", machine.iommu_groups,
                                          machine.iommu_passthrough ? ", passed through" : ""));
  text += line("/dev/shm", !machine.shm ? "none"
                           : machine.shm->free
                               ? fmt::format("{}, {} free", amount(machine.shm->size.count),
                                             amount(machine.shm->free->count))
                               : amount(machine.shm->size.count));
  text += line("Locked memory",
               machine.locked_memory ? "at most " + amount(*machine.locked_memory) : "unknown");
  text += line("Open files", !machine.open_files ? "unknown"
                             : *machine.open_files == ~std::uint64_t{0}
                                 ? "unlimited"
                                 : fmt::format("at most {}", *machine.open_files));
  return text;
}

std::string settings_text(const Settings& settings) {
  std::string text = fmt::format("\nSettings in force: {}\n", settings.list.size());
  for (const std::string& file : settings.files) text += paragraph("  read ", file, 7);
  for (const Setting& setting : settings.list) {
    std::string value = setting.value.substr(0, kMostValue);
    if (setting.value.size() > kMostValue) {
      value += fmt::format("... ({} bytes)", setting.value.size());
    }
    text += paragraph("  ", setting.name + "=" + value, 2);
    const check::Variable* variable = check::variable_named(setting.name);
    text += paragraph(
        "      ",
        setting.source + (variable == nullptr ? std::string()
                                              : fmt::format("; {} (default: {})", variable->meaning,
                                                            variable->fallback)),
        6);
  }
  return text;
}

std::string findings_text(const Findings& findings) {
  std::size_t counts[3] = {};
  for (const Finding& finding : findings) ++counts[static_cast<int>(finding.severity)];
  const auto number = [](std::size_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  std::string text = fmt::format("\nFindings: {}, {}, {}\n", number(counts[0], "error"),
                                 number(counts[1], "warning"), number(counts[2], "note"));
  for (const Finding& finding : findings) {
    text += paragraph(fmt::format("  {:<9}", name_of(finding.severity)),
                      fmt::format("{} [{}]", finding.what, finding.id), 11);
    text += paragraph("           why: ", finding.why, 16);
    text += paragraph("           remedy: ", finding.remedy, 19);
  }
  return text;
}

}  // namespace

std::string check_text(const Check& check) {
  const Machine& machine = check.machine;
  std::string text = paragraph("", "Machine " + machine.root, 0);
  text += system_text(machine) + gpus_text(machine) + nvml_text(machine) + rdma_text(machine) +
          interfaces_text(machine);
  constexpr std::size_t kMostUnread = 10;
  for (std::size_t i = 0; i < std::min(machine.unread.size(), kMostUnread); ++i) {
    text += line("Not read", machine.unread[i].path + ": " + machine.unread[i].why);
  }
  if (machine.unread.size() > kMostUnread) {
    text += line("Not read", fmt::format("{} more", machine.unread.size() - kMostUnread));
  }
  return text + settings_text(check.settings) + findings_text(check.findings);
}

}  // namespace weir
