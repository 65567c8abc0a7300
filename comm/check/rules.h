// What can be wrong with a machine and its settings: one table of rules. A rule looks at the two
// and adds what it finds; it knows of no other rule. Source: the NCCL 2.28 user guide, its source,
// and what users reported (the issue is named where there is one).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/comm/check.h"

namespace weir::check {

struct Rule {
  std::string_view id;
  void (*look)(const Machine&, const Settings&, Findings&);
};
std::span<const Rule> rules();

// Adds a finding; its id is set by who calls the rule.
void say(Findings& findings, Severity severity, std::string what, std::string why,
         std::string remedy);
// "NAME=value", cut where it is long.
std::string shown(const Settings& settings, std::string_view name);

// A list of devices, as in NCCL_SOCKET_IFNAME and NCCL_IB_HCA: "^=NAME[:PORT],...".
class DeviceList {
 public:
  explicit DeviceList(std::string_view text);

  struct Entry {
    std::string name;
    int port = -1;  // -1: every one
  };
  const std::vector<Entry>& entries() const { return entries_; }
  bool excludes() const { return excludes_; }
  // Does `entry` mean that device? By its beginning, or by its whole name after a '='.
  bool means(const Entry& entry, std::string_view name, int port = -1) const;
  // Is the device one to be used?
  bool takes(std::string_view name, int port = -1) const;

 private:
  bool excludes_ = false, exact_ = false;
  std::vector<Entry> entries_;
};

// clang-format off
#define WEIR_CHECK_RULES(RULE)                                                                    \
  /* rules_values.cc: the settings, each alone */                                                \
  RULE(unknown_variable) RULE(wrong_value) RULE(configuration_file) RULE(rendezvous)             \
  RULE(topology_file) RULE(debug_without_effect) RULE(nccl_library) RULE(launch_variables)       \
  RULE(weir_setting)                                                                             \
  /* rules_network.cc: settings of networks, and the networks that there are */                  \
  RULE(ib_disabled_and_set) RULE(network_without_rdma) RULE(socket_interface)                    \
  RULE(rdma_device) RULE(rdma_gid) RULE(rdma_port_down) RULE(gpu_direct_missing)                 \
  RULE(gpu_direct_refused) RULE(locked_memory) RULE(mtu_differs) RULE(no_network)                \
  /* rules_gpus.cc: GPUs and the ways between them */                                            \
  RULE(driver_missing) RULE(p2p_disabled_and_set) RULE(no_direct_way) RULE(peer_access)          \
  RULE(nvlink_down) RULE(pcie_link_narrow) RULE(nvls_without_nvswitch) RULE(nvls_disabled)       \
  RULE(iommu) RULE(shared_memory) RULE(open_files)                                               \
  /* rules_captures.cc: what captures and Weir's pools need */                                   \
  RULE(cumem_disabled) RULE(graph_register) RULE(runtime_connect) RULE(launch_order)             \
  RULE(graph_mixing) RULE(comm_blocking) RULE(launch_blocking) RULE(device_connections)          \
  RULE(channels)
// clang-format on

#define WEIR_CHECK_DECLARE(name) void name(const Machine&, const Settings&, Findings&);
WEIR_CHECK_RULES(WEIR_CHECK_DECLARE)
#undef WEIR_CHECK_DECLARE

}  // namespace weir::check
