// SPDX-License-Identifier: Apache-2.0
// What of a machine and its settings breaks captures or RDMA in silence. A rule adds what it finds,
// and depends on no other rule. Source: the NCCL 2.28 user guide, its source, and what users
// reported (the issue is named where there is one).
#include <strings.h>

#include <algorithm>

#include "weir/comm/check.h"

namespace weir {
namespace {

using enum Severity;

// "NAME=value", cut where it is long.
std::string shown(const Settings& settings, std::string_view name) {
  constexpr std::size_t kMostShown = 60;  // bytes of the value
  const Setting* setting = settings.find(name);
  const std::string value = setting == nullptr ? "" : setting->value;
  return std::string(name) + "=" + value.substr(0, kMostShown) +
         (value.size() > kMostShown ? "..." : "");
}

bool is_set(const Settings& settings, std::string_view name) {
  return settings.number(name).value_or(0) != 0;
}

bool ib_disabled(const Settings& settings) {
  const Setting* network = settings.find("NCCL_NET");
  return is_set(settings, "NCCL_IB_DISABLE") ||
         (network != nullptr && ::strcasecmp(network->value.c_str(), "Socket") == 0);
}

void configuration_file(const Machine&, const Settings& settings, Findings& findings) {
  for (const Unread& unread : settings.unread) {
    findings.push_back({warning, "", unread.path + ": a configuration file that can't be read",
                        unread.why + "; NCCL goes on without it, and says nothing.",
                        "Make it readable, or correct NCCL_CONF_FILE."});
  }
}

// NCCL_IB_HCA says which ports are meant to be used: then NCCL's log says what became of them.
void rdma_port_down(const Machine& machine, const Settings& settings, Findings& findings) {
  if (ib_disabled(settings) || settings.find("NCCL_IB_HCA") != nullptr) return;
  for (const RdmaPort& port : machine.rdma) {
    if (port.state == "ACTIVE") continue;
    findings.push_back(
        {warning, "",
         port.device + " port " + std::to_string(port.number) +
             " is not active: " + (port.state.empty() ? "its state is unknown" : port.state),
         "NCCL leaves it out; where other nodes use theirs, traffic is uneven.",
         "Check the cable and the switch (InfiniBand: the subnet manager too), or leave the port "
         "out on all nodes with NCCL_IB_HCA."});
  }
}

void gpu_direct_missing(const Machine& machine, const Settings& settings, Findings& findings) {
  const bool has_active = std::any_of(machine.rdma.begin(), machine.rdma.end(),
                                      [](const RdmaPort& port) { return port.state == "ACTIVE"; });
  if (machine.gpus == 0 || !has_active || ib_disabled(settings)) return;
  const bool forbidden = settings.number("NCCL_DMABUF_ENABLE") == 0;
  if (machine.peermem || (machine.has_dma_buf() && !forbidden)) return;
  findings.push_back(
      {warning, "", "RDMA, but no GPUDirect RDMA",
       std::string("Data goes through the host's memory. nvidia_peermem is not loaded, and ") +
           (machine.has_dma_buf() ? "NCCL_DMABUF_ENABLE=0 forbids dma-buf."
                                  : "dma-buf needs Linux 5.12 and the open kernel modules."),
       machine.has_dma_buf() ? "Leave NCCL_DMABUF_ENABLE out."
                             : "Load nvidia_peermem (modprobe nvidia_peermem), or install the "
                               "driver's open kernel modules."});
}

// Weir refuses it in the environment. Where it stands in a file, Weir sets 0 in the environment,
// which wins.
void graph_register(const Machine&, const Settings& settings, Findings& findings) {
  if (!is_set(settings, "NCCL_GRAPH_REGISTER")) return;
  const bool refused = settings.find("NCCL_GRAPH_REGISTER")->source == "environment";
  findings.push_back(
      {refused ? error : warning, "",
       shown(settings, "NCCL_GRAPH_REGISTER") + ": NCCL registers the buffers of captures itself",
       "It takes the whole physical handle under a buffer, on some ranks and not on others where "
       "buffers straddle handles; peers keep that memory until the graph is gone. Weir's pools "
       "move memory between addresses meanwhile.",
       "Set NCCL_GRAPH_REGISTER=0, and register segments explicitly."});
}

struct Rule {
  std::string_view id;
  void (*look)(const Machine&, const Settings&, Findings&);
};
constexpr Rule kRules[] = {
    {"configuration_file", configuration_file},
    {"rdma_port_down", rdma_port_down},
    {"gpu_direct_missing", gpu_direct_missing},
    {"graph_register", graph_register},
};

// Rules on one variable, as NCCL reads it: zero is wrong, or one, or anything but zero.
struct SettingRule {
  std::string_view id, variable;
  enum class Wrong { zero, one, not_zero } wrong;
  Severity severity;
  const char *what, *why, *remedy;
};
using enum SettingRule::Wrong;
constexpr SettingRule kSettingRules[] = {
    {"cumem_disabled", "NCCL_CUMEM_ENABLE", zero, warning, "memory is shared by cudaIpc calls",
     "They are not legal in a capture, and segments of Weir's can't be registered.",
     "Leave it out."},
    {"launch_order", "NCCL_LAUNCH_ORDER_IMPLICIT", not_zero, note,
     "captured collectives are slower",
     "Each waits for the one before in nodes of its own: 5 to 8 us more for each in a graph. And "
     "threads that use different communicators of a GPU at once are an error.",
     "Leave it at 0, unless communicators whose ranks use them in different orders wait for each "
     "other for ever."},
    {"graph_mixing", "NCCL_GRAPH_MIXING_SUPPORT", zero, warning, "graphs must not overlap",
     "Two graphs of one communicator at once, or an eager call beside a graph, hang or corrupt "
     "data. It saves a few nodes of each graph.",
     "Leave it out, unless graphs are launched one after another, with no eager call between."},
    {"comm_blocking", "NCCL_COMM_BLOCKING", zero, error, "NCCL's calls return before they are done",
     "It wins over what a program asks for. Weir refuses to work with it: a capture would end "
     "without what NCCL launches later.",
     "Leave it out."},
    {"launch_blocking", "CUDA_LAUNCH_BLOCKING", not_zero, warning, "the host waits for each kernel",
     "A collective waits for its peers: where one thread drives several GPUs or communicators, "
     "that is a deadlock (nccl#750). Nothing overlaps either.",
     "Leave it out; to find a fault use compute-sanitizer."},
    {"device_connections", "CUDA_DEVICE_MAX_CONNECTIONS", one, note,
     "streams share one queue to the GPU",
     "Kernels start in the order of their launches: a collective that is launched late starts "
     "late, even on a stream that is idle.",
     "Wanted where the order of launches is the plan, as in tensor parallelism; else leave it "
     "out."},
};

bool is_wrong(const SettingRule& rule, const Settings& settings) {
  const std::optional<std::int64_t> value = settings.number(rule.variable);
  return value && (rule.wrong == not_zero ? *value != 0 : *value == (rule.wrong == one ? 1 : 0));
}

}  // namespace

std::vector<std::string_view> rule_ids() {
  std::vector<std::string_view> ids;
  for (const Rule& rule : kRules) ids.push_back(rule.id);
  for (const SettingRule& rule : kSettingRules) ids.push_back(rule.id);
  return ids;
}

std::string_view name_of(Severity severity) {
  constexpr std::string_view kNames[] = {"error", "warning", "note"};
  return kNames[static_cast<int>(severity)];
}

Findings examine(const Machine& machine, const Settings& settings) {
  Findings findings;
  for (const Rule& rule : kRules) {
    const std::size_t before = findings.size();
    rule.look(machine, settings, findings);
    for (std::size_t i = before; i < findings.size(); ++i) findings[i].id = rule.id;
  }
  for (const SettingRule& rule : kSettingRules) {
    if (!is_wrong(rule, settings)) continue;
    findings.push_back({rule.severity, std::string(rule.id),
                        shown(settings, rule.variable) + ": " + rule.what, rule.why, rule.remedy});
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings;
}

bool has_error(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::error; });
}

}  // namespace weir
