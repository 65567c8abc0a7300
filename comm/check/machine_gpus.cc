#include <algorithm>
#include <cctype>

#include "comm/check/parts.h"

namespace weir::check {
namespace {

constexpr const char* kDevices = "/sys/bus/pci/devices/";
constexpr const char* kDriverGpus = "/proc/driver/nvidia/gpus/";

// The driver's file about one GPU: "Model:   NVIDIA H200".
std::string model_of(Tree& tree, const std::string& pci) {
  const std::string path = kDriverGpus + pci + "/information";
  for (const std::string& line : split(tree.text(path).value_or(""), '\n')) {
    if (line.starts_with("Model:")) return std::string(trimmed(std::string_view(line).substr(6)));
  }
  return {};
}

PciGpu gpu_at(Tree& tree, const std::string& pci) {
  const std::string device = kDevices + pci;
  PciGpu gpu{.pci = pci, .model = model_of(tree, pci)};
  gpu.numa_node = tree.number(device + "/numa_node");
  if (gpu.numa_node && *gpu.numa_node < 0) gpu.numa_node.reset();  // the kernel doesn't know
  gpu.link_speed = tree.text(device + "/current_link_speed").value_or("");
  gpu.link_width = tree.number(device + "/current_link_width");
  gpu.max_link_width = tree.number(device + "/max_link_width");
  return gpu;
}

// In a container the PCI bus may show GPUs that the driver does not give it, or the other way
// about: a GPU is what either knows.
void read_devices(Tree& tree, Machine& machine) {
  std::vector<std::string> places = tree.list("/proc/driver/nvidia/gpus");
  int bridges = 0;
  for (const std::string& pci : tree.list("/sys/bus/pci/devices")) {
    if (tree.text(kDevices + pci + "/vendor") != "0x10de") continue;
    const std::string kind = tree.text(kDevices + pci + "/class").value_or("");
    if (kind.starts_with("0x0300") || kind.starts_with("0x0302")) places.push_back(pci);
    if (kind.starts_with("0x0680")) ++bridges;  // how an NVSwitch presents itself
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  for (const std::string& pci : places) machine.gpus.push_back(gpu_at(tree, pci));

  int nodes = 0;  // nvidia-nvswitch0, 1, ...; nvidia-nvswitchctl is none of them
  for (const std::string& name : tree.list("/dev")) {
    const std::string_view prefix = "nvidia-nvswitch";
    if (name.starts_with(prefix) && name.size() > prefix.size() &&
        std::isdigit(static_cast<unsigned char>(name[prefix.size()])) != 0) {
      ++nodes;
    }
  }
  machine.nvswitches = std::max(nodes, bridges);
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build ..."
void read_driver(Tree& tree, Machine& machine) {
  const std::string text = tree.text("/proc/driver/nvidia/version").value_or("");
  const std::string line = text.substr(0, text.find('\n'));
  machine.open_driver = line.find("Open Kernel Module") != std::string::npos;
  for (const std::string& word : split(line, ' ')) {
    const bool is_version = word.find('.') != std::string::npos && word.size() < 24 &&
                            std::all_of(word.begin(), word.end(), [](unsigned char c) {
                              return std::isdigit(c) != 0 || c == '.';
                            });
    if (is_version && machine.driver.empty()) machine.driver = word;
  }
}

bool has_module(Tree& tree, const std::string& modules, const std::string& name) {
  return modules.starts_with(name + ' ') || modules.find('\n' + name + ' ') != std::string::npos ||
         tree.exists("/sys/module/" + name);
}

}  // namespace

void read_gpus(Tree& tree, Machine& machine) {
  read_devices(tree, machine);
  read_driver(tree, machine);
  const std::string modules = tree.text("/proc/modules").value_or("");
  machine.peermem =
      has_module(tree, modules, "nvidia_peermem") || has_module(tree, modules, "nv_peer_mem");
  machine.gdrcopy = tree.exists("/dev/gdrdrv");
  machine.imex_channels = !tree.list("/dev/nvidia-caps-imex-channels").empty();
}

}  // namespace weir::check
