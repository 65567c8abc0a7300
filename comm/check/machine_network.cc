#include "comm/check/parts.h"
#include "comm/numbers.h"

namespace weir::check {
namespace {

// "4: ACTIVE", as the kernel says it.
std::string state_in(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

// The table has entries that are not in use; reading their types fails, or the GID is zero.
std::map<int, std::string> gids_of(Tree& tree, const std::string& port) {
  std::map<int, std::string> gids;
  for (const std::string& name : tree.list(port + "/gid_attrs/types")) {
    const std::optional<std::int64_t> index = number_in(name);
    const std::optional<std::string> type = tree.text(port + "/gid_attrs/types/" + name);
    if (!index || *index < 0 || *index > 65535 || !type || type->empty()) continue;
    const std::string gid = tree.text(port + "/gids/" + name).value_or("?");
    if (gid.find_first_not_of("0:") == std::string::npos) continue;
    gids[static_cast<int>(*index)] = *type;
  }
  return gids;
}

RdmaPort port_at(Tree& tree, const std::string& path, int number) {
  return {.number = number,
          .state = state_in(tree.text(path + "/state").value_or("")),
          .rate = tree.text(path + "/rate").value_or(""),
          .link_layer = tree.text(path + "/link_layer").value_or(""),
          .gids = gids_of(tree, path)};
}

}  // namespace

void read_rdma(Tree& tree, Machine& machine) {
  for (const std::string& name : tree.list("/sys/class/infiniband")) {
    const std::string path = "/sys/class/infiniband/" + name;
    RdmaDevice device{.name = name,
                      .pci = tree.target_name(path + "/device"),
                      .firmware = tree.text(path + "/fw_ver").value_or("")};
    device.numa_node = tree.number(path + "/device/numa_node");
    if (device.numa_node && *device.numa_node < 0) device.numa_node.reset();
    for (const std::string& port : tree.list(path + "/ports")) {
      const std::optional<std::int64_t> number = number_in(port);
      if (!number || *number < 1 || *number > 255) continue;
      device.ports.push_back(port_at(tree, path + "/ports/" + port, static_cast<int>(*number)));
    }
    machine.rdma.push_back(std::move(device));
  }
}

void read_interfaces(Tree& tree, Machine& machine) {
  for (const std::string& name : tree.list("/sys/class/net")) {
    const std::string path = "/sys/class/net/" + name;
    if (!tree.exists(path + "/operstate")) continue;  // bonding_masters is a file
    NetworkInterface interface { .name = name };
    const std::string state = tree.text(path + "/operstate").value_or("");
    // What has no carrier to lose says "unknown": the loopback, tunnels.
    interface.up = state == "up" || (state == "unknown" && tree.number(path + "/carrier") == 1);
    interface.is_virtual = !tree.exists(path + "/device");
    interface.speed = tree.number(path + "/speed");
    if (interface.speed && *interface.speed <= 0) interface.speed.reset();
    interface.mtu = tree.number(path + "/mtu");
    machine.interfaces.push_back(std::move(interface));
  }
}

}  // namespace weir::check
