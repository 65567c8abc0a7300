#include "comm/check/rules.h"

#include <strings.h>

#include <algorithm>
#include <set>

#include "comm/check/tree.h"
#include "comm/numbers.h"

namespace weir {
namespace check {
namespace {

using enum Severity;

constexpr std::uint64_t kEnoughLocked = std::uint64_t{1} << 30;

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

template <class List>
std::string joined(const List& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::string devices_of(const Machine& machine) {
  std::vector<std::string> names;
  for (const RdmaDevice& device : machine.rdma) names.push_back(device.name);
  return joined(names);
}

// Calls `visit` with each port that NCCL_IB_HCA leaves to NCCL.
template <class Visit>
void for_each_chosen_port(const Machine& machine, const Settings& settings, Visit visit) {
  const Setting* chosen = settings.find("NCCL_IB_HCA");
  for (const RdmaDevice& device : machine.rdma) {
    for (const RdmaPort& port : device.ports) {
      if (chosen != nullptr && !DeviceList(chosen->value).takes(device.name, port.number)) continue;
      visit(port, device.name + " port " + std::to_string(port.number));
    }
  }
}

void configuration_file(const Machine&, const Settings& settings, Findings& findings) {
  for (const Unread& unread : settings.unread) {
    findings.push_back({warning, "", unread.path + ": a configuration file that can't be read",
                        unread.why + "; NCCL goes on without it, and says nothing.",
                        "Make it readable, or correct NCCL_CONF_FILE."});
  }
  for (const OddLine& line : settings.odd_lines) {
    findings.push_back(
        {warning, "",
         line.file + ", line " + std::to_string(line.line) + ": not as NCCL reads such files",
         "In the line: " + line.why + ".",
         "Write NAME=value, with no white space and no quotes, or begin a comment with #."});
  }
}

void ib_disabled_and_set(const Machine&, const Settings& settings, Findings& findings) {
  if (!ib_disabled(settings)) return;
  std::vector<std::string> idle;
  for (const Setting& setting : settings.list) {
    const bool is_rdmas = setting.name.starts_with("NCCL_IB_") && setting.name != "NCCL_IB_DISABLE";
    if (is_rdmas && !setting.value.empty()) idle.push_back(setting.name);
  }
  if (idle.empty()) return;
  const std::string reason =
      shown(settings, is_set(settings, "NCCL_IB_DISABLE") ? "NCCL_IB_DISABLE" : "NCCL_NET");
  findings.push_back({warning, "", reason + ", but " + joined(idle) + " set too",
                      "RDMA is not used, so settings of RDMA have no effect.",
                      "Leave " + reason + " out to use RDMA, or the others to use sockets."});
}

void rdma_device(const Machine& machine, const Settings& settings, Findings& findings) {
  const Setting* chosen = settings.find("NCCL_IB_HCA");
  if (chosen == nullptr || ib_disabled(settings)) return;
  const DeviceList list(chosen->value);
  bool any = false;
  std::set<std::string> missing;
  for (const DeviceList::Entry& entry : list.entries()) missing.insert(entry.name);
  for (const RdmaDevice& device : machine.rdma) {
    for (const RdmaPort& port : device.ports) {
      any |= list.takes(device.name, port.number);
      for (const DeviceList::Entry& entry : list.entries()) {
        if (list.names(entry, device.name, port.number)) missing.erase(entry.name);
      }
    }
  }
  const std::string what = shown(settings, "NCCL_IB_HCA");
  const std::string there = " There are: " + devices_of(machine) + ".";
  if (!any) {
    findings.push_back({error, "", what + ": leaves no RDMA port of this machine",
                        "NCCL goes over sockets then, much slower, or fails." + there,
                        "Name one of these, by its beginning (mlx5), or whole after a = "
                        "(=mlx5_0:1); ^ excludes."});
  } else if (!missing.empty()) {
    findings.push_back({warning, "", what + ": names what is not there: " + joined(missing),
                        "NCCL uses the others, and says nothing." + there,
                        "Correct the names; after a = they must be whole."});
  }
}

void rdma_gid(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::optional<std::int64_t> index = settings.number("NCCL_IB_GID_INDEX");
  if (!index || *index < 0 || ib_disabled(settings)) return;
  for_each_chosen_port(machine, settings, [&](const RdmaPort& port, const std::string& name) {
    if (port.link_layer != "Ethernet" || port.state != "ACTIVE") return;
    const auto gid = *index < 65536 ? port.gids.find(static_cast<int>(*index)) : port.gids.end();
    const std::string what = shown(settings, "NCCL_IB_GID_INDEX") + ": " + name;
    if (gid == port.gids.end()) {
      findings.push_back({error, "", what + " has no such entry",
                          "Connections through that port fail.",
                          "Leave it out: NCCL 2.21 and later find the entry themselves."});
    } else if (gid->second.find("v2") == std::string::npos) {
      findings.push_back({warning, "", what + " has an entry of " + gid->second + " there",
                          "RoCE v1 does not cross routers, and both ends must have the same.",
                          "Leave it out, or take an entry of RoCE v2."});
    }
  });
}

void rdma_port_down(const Machine& machine, const Settings& settings, Findings& findings) {
  if (ib_disabled(settings)) return;
  for_each_chosen_port(machine, settings, [&](const RdmaPort& port, const std::string& name) {
    if (port.state == "ACTIVE") return;
    findings.push_back(
        {warning, "",
         name + " is not active: " + (port.state.empty() ? "its state is unknown" : port.state),
         "NCCL leaves it out; where other nodes use theirs, traffic is uneven.",
         "Check the cable and the switch (InfiniBand: the subnet manager too), or leave the port "
         "out on all nodes with NCCL_IB_HCA."});
  });
}

void gpu_direct_missing(const Machine& machine, const Settings& settings, Findings& findings) {
  if (machine.gpus == 0 || !machine.has_active_rdma() || ib_disabled(settings)) return;
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

void locked_memory(const Machine& machine, const Settings& settings, Findings& findings) {
  if (machine.rdma.empty() || ib_disabled(settings)) return;
  if (machine.locked_memory.value_or(kEnoughLocked) >= kEnoughLocked) return;
  findings.push_back(
      {warning, "",
       "A process may lock " + std::to_string(*machine.locked_memory >> 10) +
           " KiB of memory, and there is RDMA",
       "RDMA locks what it transfers: registrations fail with \"Cannot allocate memory\".",
       "Set the limit to unlimited: ulimit -l, LimitMEMLOCK= of the service, or --ulimit "
       "memlock=-1 of the container."});
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

void launch_order(const Machine& machine, const Settings& settings, Findings& findings) {
  // Of CUDA 12.9, from which order between communicators holds in captures without serialising.
  constexpr std::int64_t kDriverOfOrder = 575;
  if (!is_set(settings, "NCCL_LAUNCH_ORDER_IMPLICIT")) return;
  const std::string what = shown(settings, "NCCL_LAUNCH_ORDER_IMPLICIT");
  findings.push_back(
      {note, "", what + ": captured collectives are slower",
       "Each waits for the one before in nodes of its own: 5 to 8 us more for each in a graph. And "
       "threads that use different communicators of a GPU at once are an error.",
       "Leave it at 0, unless communicators whose ranks use them in different orders wait for each "
       "other for ever."});
  const auto driver =
      number_in(std::string_view(machine.driver).substr(0, machine.driver.find('.')));
  if (driver.value_or(kDriverOfOrder) >= kDriverOfOrder) return;
  findings.push_back({note, "", what + " with driver " + machine.driver,
                      "Captured collectives of several communicators run one after the other, "
                      "without overlap.",
                      "A driver for CUDA 12.9 or later (575) lets them overlap."});
}

struct Rule {
  std::string_view id;
  void (*look)(const Machine&, const Settings&, Findings&);
};
constexpr Rule kRules[] = {
    {"configuration_file", configuration_file},
    {"ib_disabled_and_set", ib_disabled_and_set},
    {"rdma_device", rdma_device},
    {"rdma_gid", rdma_gid},
    {"rdma_port_down", rdma_port_down},
    {"gpu_direct_missing", gpu_direct_missing},
    {"locked_memory", locked_memory},
    {"graph_register", graph_register},
    {"launch_order", launch_order},
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
    {"runtime_connect", "NCCL_RUNTIME_CONNECT", not_zero, warning,
     "ranks connect at the first collective",
     "If that one is captured, connecting makes calls that are not legal in a capture: \"operation "
     "not permitted when stream is capturing\".",
     "Set NCCL_RUNTIME_CONNECT=0."},
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

DeviceList::DeviceList(std::string_view text) {
  if (text.starts_with('^')) excludes_ = true, text.remove_prefix(1);
  if (text.starts_with('=')) exact_ = true, text.remove_prefix(1);
  for (const std::string& word : split(text, ',')) {
    const std::size_t colon = word.find(':');
    Entry entry{.name = word.substr(0, colon)};
    if (colon != std::string::npos) {
      const auto port = whole_number(std::string_view(word).substr(colon + 1), 255);
      if (port) entry.port = static_cast<int>(*port);
    }
    if (!entry.name.empty()) entries_.push_back(std::move(entry));
  }
}

bool DeviceList::names(const Entry& entry, std::string_view device, int port) const {
  const bool named = exact_ ? device == entry.name : device.starts_with(entry.name);
  return named && (entry.port < 0 || entry.port == port);
}

bool DeviceList::takes(std::string_view device, int port) const {
  const bool named = std::any_of(entries_.begin(), entries_.end(),
                                 [&](const Entry& entry) { return names(entry, device, port); });
  return named != excludes_;
}

}  // namespace check

std::string_view name_of(Severity severity) {
  constexpr std::string_view kNames[] = {"error", "warning", "note"};
  return kNames[static_cast<int>(severity)];
}

Findings examine(const Machine& machine, const Settings& settings) {
  Findings findings;
  for (const check::Rule& rule : check::kRules) {
    const std::size_t before = findings.size();
    rule.look(machine, settings, findings);
    for (std::size_t i = before; i < findings.size(); ++i) findings[i].id = rule.id;
  }
  for (const check::SettingRule& rule : check::kSettingRules) {
    if (!check::is_wrong(rule, settings)) continue;
    findings.push_back({rule.severity, std::string(rule.id),
                        check::shown(settings, rule.variable) + ": " + rule.what, rule.why,
                        rule.remedy});
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
