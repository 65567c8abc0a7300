#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "comm/check/tree.h"
#include "comm/numbers.h"
#include "weir/comm/check.h"

namespace weir {
namespace check {
namespace {

// A line of /proc/self/limits: the name, then the soft limit.
std::optional<std::uint64_t> limit_in(const std::string& limits, std::string_view name) {
  const std::size_t at = limits.find(name);
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = trimmed(std::string_view(limits).substr(at + name.size()));
  const std::string_view soft = rest.substr(0, rest.find_first_of(" \t\n"));
  return soft == "unlimited" ? ~std::uint64_t{0} : whole_number(soft, ~std::uint64_t{0});
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

// The table has entries that are not in use; reading their types fails, or the GID is zero.
std::map<int, std::string> gids_of(Tree& tree, const std::string& port) {
  std::map<int, std::string> gids;
  for (const std::string& name : tree.list(port + "/gid_attrs/types")) {
    const std::optional<std::uint64_t> index = whole_number(name, 65535);
    const std::optional<std::string> type = tree.text(port + "/gid_attrs/types/" + name);
    if (!index || !type || type->empty()) continue;
    const std::string gid = tree.text(port + "/gids/" + name).value_or("?");
    if (gid.find_first_not_of("0:") != std::string::npos) gids[static_cast<int>(*index)] = *type;
  }
  return gids;
}

void read_rdma(Tree& tree, Machine& machine) {
  for (const std::string& name : tree.list("/sys/class/infiniband")) {
    RdmaDevice device{.name = name};
    const std::string ports = "/sys/class/infiniband/" + name + "/ports";
    for (const std::string& port : tree.list(ports)) {
      const std::optional<std::uint64_t> number = whole_number(port, 255);
      if (!number || *number == 0) continue;
      const std::string path = ports + '/' + port;
      const std::string state = tree.text(path + "/state").value_or("");  // "4: ACTIVE"
      const std::size_t colon = state.find(": ");
      device.ports.push_back({.number = static_cast<int>(*number),
                              .state = colon == state.npos ? state : state.substr(colon + 2),
                              .link_layer = tree.text(path + "/link_layer").value_or(""),
                              .gids = gids_of(tree, path)});
    }
    machine.rdma.push_back(std::move(device));
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
  return std::any_of(rdma.begin(), rdma.end(), [](const RdmaDevice& device) {
    return std::any_of(device.ports.begin(), device.ports.end(),
                       [](const RdmaPort& port) { return port.state == "ACTIVE"; });
  });
}

Machine read_machine(const std::string& root, const std::string& nccl_library) {
  Machine machine{.root = root};
  check::Tree tree(root);
  machine.gpus = static_cast<int>(tree.list("/proc/driver/nvidia/gpus").size());
  machine.kernel = tree.text("/proc/sys/kernel/osrelease").value_or("");
  check::read_driver(tree, machine);
  const std::string modules = tree.text("/proc/modules").value_or("");
  machine.peermem = check::has_module(tree, modules, "nvidia_peermem") ||
                    check::has_module(tree, modules, "nv_peer_mem");
  check::read_rdma(tree, machine);
  machine.locked_memory =
      check::limit_in(tree.text("/proc/self/limits").value_or(""), "Max locked memory");
  machine.no_nccl = "not asked: it would speak of this machine, not of the root";
  if (!nccl_library.empty()) {
    const Result<std::string> version = nccl_version_of(nccl_library);
    machine.nccl = version ? *version : "";
    machine.no_nccl = version ? "" : version.error().message();
  }
  machine.unread = tree.unread();
  return machine;
}

// NCCL's header is not needed, and the library is never closed: it may have started threads.
Result<std::string> nccl_version_of(const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (opened == nullptr) return Error(ErrorCode::unavailable, ::dlerror());
  auto* const get_version = reinterpret_cast<int (*)(int*)>(::dlsym(opened, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    return Error(ErrorCode::unavailable,
                 library + (get_version == nullptr ? " is no NCCL: it lacks ncclGetVersion"
                                                   : ": ncclGetVersion failed"));
  }
  // 2.9 and later: 2, 09, 00; before: 2, 8, 03.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(version % 100);
}

}  // namespace weir
