#include <strings.h>

#include <algorithm>
#include <set>

#include "comm/check/rules.h"

namespace weir::check {
namespace {

constexpr std::uint64_t kEnoughLocked = std::uint64_t{1} << 30;
constexpr int kFast = 10'000;  // Mbit/s

bool network_is(const Settings& settings, const char* name) {
  const std::string* network = settings.find("NCCL_NET");
  return network != nullptr && ::strcasecmp(network->c_str(), name) == 0;
}

bool ib_disabled(const Settings& settings) {
  return settings.number("NCCL_IB_DISABLE").value_or(0) != 0 || network_is(settings, "Socket");
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 12; ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > 12) text += ", and " + std::to_string(names.size() - 12) + " more";
  return text.empty() ? "none" : text;
}

std::string names_of(const Machine& machine) {
  std::vector<std::string> names;
  for (const NetworkInterface& interface : machine.interfaces) names.push_back(interface.name);
  return joined(names);
}

std::string rdma_of(const Machine& machine) {
  std::vector<std::string> names;
  for (const RdmaDevice& device : machine.rdma) names.push_back(device.name);
  return joined(names);
}

}  // namespace

void ib_disabled_and_set(const Machine&, const Settings& settings, Findings& findings) {
  if (!ib_disabled(settings)) return;
  const bool disabled = settings.number("NCCL_IB_DISABLE").value_or(0) != 0;
  const std::string reason = shown(settings, disabled ? "NCCL_IB_DISABLE" : "NCCL_NET");
  if (disabled && network_is(settings, "IB")) {
    say(findings, Severity::error, "NCCL_NET=IB, but NCCL_IB_DISABLE=1",
        "The one asks for RDMA, the other forbids it: NCCL finds no network and fails.",
        "Leave one of them out.");
  }
  std::vector<std::string> idle;
  for (const Setting& setting : settings.list) {
    if (setting.name.starts_with("NCCL_IB_") && setting.name != "NCCL_IB_DISABLE" &&
        !setting.value.empty()) {
      idle.push_back(setting.name);
    }
  }
  if (idle.empty()) return;
  say(findings, Severity::warning, reason + ", but " + joined(idle) + " set too",
      "RDMA is not used, so settings of RDMA have no effect: traffic between nodes goes over "
      "sockets.",
      "Leave " + reason + " out to use RDMA, or the others to use sockets.");
}

void network_without_rdma(const Machine& machine, const Settings& settings, Findings& findings) {
  if (!network_is(settings, "IB") || machine.has_active_rdma()) return;
  say(findings, Severity::error,
      machine.rdma.empty() ? "NCCL_NET=IB, but this machine has no RDMA device"
                           : "NCCL_NET=IB, but no port of an RDMA device is active",
      "NCCL takes no other network then, and fails.",
      machine.rdma.empty()
          ? "Load the card's driver, give the container /dev/infiniband, or leave NCCL_NET out."
          : "Connect a port and start its subnet manager, or leave NCCL_NET out.");
}

void socket_interface(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::string* value = settings.find("NCCL_SOCKET_IFNAME");
  if (value == nullptr) return;
  const DeviceList list(*value);
  std::vector<std::string> taken;
  bool any_up = false;
  for (const NetworkInterface& interface : machine.interfaces) {
    if (!list.takes(interface.name)) continue;
    taken.push_back(interface.name);
    any_up |= interface.up;
  }
  const std::string what = shown(settings, "NCCL_SOCKET_IFNAME");
  if (taken.empty()) {
    say(findings, Severity::error, what + ": leaves no interface of this machine",
        "NCCL can't start: ranks find each other through one. There are: " + names_of(machine) +
            ".",
        "Name one of these, by its beginning (eth), or whole after a = (=eth0); ^ excludes.");
  } else if (!any_up) {
    say(findings, Severity::warning, what + ": takes interfaces that are down alone",
        "They are: " + joined(taken) + ". Ranks of other nodes can't be reached so.",
        "Bring one up, or name another.");
  }
  for (const DeviceList::Entry& entry : list.entries()) {
    const bool there = std::any_of(
        machine.interfaces.begin(), machine.interfaces.end(),
        [&](const NetworkInterface& interface) { return list.means(entry, interface.name); });
    if (there || taken.empty() || list.excludes()) continue;
    say(findings, Severity::note, what + ": no interface is meant by '" + entry.name + "'",
        "The list names others too, which are there.", "Leave it out, if no node has it.");
  }
}

void rdma_device(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::string* value = settings.find("NCCL_IB_HCA");
  if (value == nullptr || ib_disabled(settings)) return;
  const DeviceList list(*value);
  bool any = false;
  std::set<std::string> missing;
  for (const DeviceList::Entry& entry : list.entries()) missing.insert(entry.name);
  for (const RdmaDevice& device : machine.rdma) {
    for (const RdmaPort& port : device.ports) {
      any |= list.takes(device.name, port.number);
      for (const DeviceList::Entry& entry : list.entries()) {
        if (list.means(entry, device.name, port.number)) missing.erase(entry.name);
      }
    }
  }
  const std::string what = shown(settings, "NCCL_IB_HCA");
  if (!any) {
    say(findings, Severity::error, what + ": leaves no RDMA port of this machine",
        "NCCL goes over sockets then, much slower, or fails. There are: " + rdma_of(machine) + ".",
        "Name one of these, by its beginning (mlx5), or whole after a = (=mlx5_0:1); ^ excludes.");
  } else if (!missing.empty()) {
    say(findings, Severity::warning,
        what + ": names what is not there: " + joined({missing.begin(), missing.end()}),
        "NCCL uses the others, and says nothing. There are: " + rdma_of(machine) + ".",
        "Correct the names; after a = they must be whole.");
  }
}

void rdma_gid(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::optional<std::int64_t> index = settings.number("NCCL_IB_GID_INDEX");
  if (!index || *index < 0 || ib_disabled(settings)) return;
  const std::string* chosen = settings.find("NCCL_IB_HCA");
  for (const RdmaDevice& device : machine.rdma) {
    for (const RdmaPort& port : device.ports) {
      if (port.link_layer != "Ethernet" || port.state != "ACTIVE") continue;
      if (chosen != nullptr && !DeviceList(*chosen).takes(device.name, port.number)) continue;
      const auto gid = *index < 65536 ? port.gids.find(static_cast<int>(*index)) : port.gids.end();
      const std::string what = shown(settings, "NCCL_IB_GID_INDEX") + ": " + device.name +
                               " port " + std::to_string(port.number);
      if (gid == port.gids.end()) {
        say(findings, Severity::error, what + " has no such entry",
            "Connections through that port fail.",
            "Leave it out: NCCL 2.21 and later find the entry themselves.");
      } else if (gid->second.find("v2") == std::string::npos) {
        say(findings, Severity::warning, what + " has an entry of " + gid->second + " there",
            "RoCE v1 does not cross routers, and both ends must have the same.",
            "Leave it out, or take an entry of RoCE v2.");
      }
    }
  }
}

void rdma_port_down(const Machine& machine, const Settings& settings, Findings& findings) {
  if (ib_disabled(settings)) return;
  const std::string* chosen = settings.find("NCCL_IB_HCA");
  for (const RdmaDevice& device : machine.rdma) {
    for (const RdmaPort& port : device.ports) {
      if (port.state == "ACTIVE") continue;
      if (chosen != nullptr && !DeviceList(*chosen).takes(device.name, port.number)) continue;
      say(findings, Severity::warning,
          device.name + " port " + std::to_string(port.number) +
              " is not active: " + (port.state.empty() ? "its state is unknown" : port.state),
          "NCCL leaves it out; where other nodes use theirs, traffic is uneven.",
          "Check the cable and the switch (InfiniBand: the subnet manager too), or leave the "
          "port out on all nodes with NCCL_IB_HCA.");
    }
  }
}

void gpu_direct_missing(const Machine& machine, const Settings& settings, Findings& findings) {
  if (machine.gpus.empty() || !machine.has_active_rdma() || ib_disabled(settings)) return;
  const bool dma_buf =
      machine.has_dma_buf() && settings.number("NCCL_DMABUF_ENABLE").value_or(1) != 0;
  if (machine.peermem || dma_buf) return;
  say(findings, Severity::warning, "RDMA, but no GPUDirect RDMA",
      std::string("Data goes through the host's memory. nvidia_peermem is not loaded, and ") +
          (machine.has_dma_buf() ? "NCCL_DMABUF_ENABLE=0 forbids dma-buf."
                                 : "dma-buf needs Linux 5.12 and the open kernel modules."),
      machine.has_dma_buf() ? "Leave NCCL_DMABUF_ENABLE out."
                            : "Load nvidia_peermem (modprobe nvidia_peermem), or install the "
                              "driver's open kernel modules.");
}

void gpu_direct_refused(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::string* level = settings.find("NCCL_NET_GDR_LEVEL");
  const bool local = level != nullptr && (*level == "LOC" || *level == "0");
  if (!local || machine.rdma.empty() || !machine.has_gpu_direct()) return;
  say(findings, Severity::warning,
      shown(settings, "NCCL_NET_GDR_LEVEL") + ": GPUDirect RDMA is there, and not used",
      "LOC allows it for one and the same device alone: data goes through the host's memory.",
      "Leave it out, or set PIX, PXB, PHB or SYS.");
}

void locked_memory(const Machine& machine, const Settings& settings, Findings& findings) {
  if (machine.rdma.empty() || ib_disabled(settings) || !machine.locked_memory ||
      *machine.locked_memory >= kEnoughLocked) {
    return;
  }
  say(findings, Severity::warning,
      "A process may lock " + std::to_string(*machine.locked_memory >> 10) +
          " KiB of memory, and there is RDMA",
      "RDMA locks what it transfers: registrations fail with \"Cannot allocate memory\".",
      "Set the limit to unlimited: ulimit -l, LimitMEMLOCK= of the service, or --ulimit "
      "memlock=-1 of the container.");
}

void mtu_differs(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::string* chosen = settings.find("NCCL_SOCKET_IFNAME");
  std::set<int> sizes;
  std::vector<std::string> interfaces;
  for (const NetworkInterface& interface : machine.interfaces) {
    if (!interface.up || interface.is_virtual || !interface.mtu) continue;
    if (interface.speed.value_or(0) < kFast) continue;  // for people to log in by
    if (chosen != nullptr && !DeviceList(*chosen).takes(interface.name)) continue;
    sizes.insert(*interface.mtu);
    interfaces.push_back(interface.name + " " + std::to_string(*interface.mtu));
  }
  if (sizes.size() < 2) return;
  say(findings, Severity::warning, "Fast interfaces differ in MTU: " + joined(interfaces),
      "Where one node sends more than the other, or a switch between them, takes, packets are "
      "lost, and connections hang once they carry data.",
      "Give all of them the same MTU, and the switches at least that; or take those that agree "
      "with NCCL_SOCKET_IFNAME.");
}

void no_network(const Machine& machine, const Settings& settings, Findings& findings) {
  // No interface at all: they are not shown here.
  if (machine.interfaces.empty() || settings.find("NCCL_SOCKET_IFNAME") != nullptr) return;
  for (const NetworkInterface& interface : machine.interfaces) {
    if (interface.up && interface.name != "lo") return;
  }
  say(findings, Severity::note, "No network interface is up but the loopback",
      "Ranks of this machine find each other; other nodes are out of reach.",
      "Bring one up, if there are other nodes.");
}

}  // namespace weir::check
