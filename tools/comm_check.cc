// SPDX-License-Identifier: Apache-2.0
// Nothing that is read is trusted: reads are bounded, and what is printed is printable. Source of
// the rules: the NCCL 2.28 user guide, its source, and what users reported (the issue is named
// where there is one).
#include "comm_check.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/numbers.h"

namespace weir {

NLOHMANN_JSON_SERIALIZE_ENUM(Severity, {{Severity::error, "error"}, {Severity::warning, "warning"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RdmaPort, device, port, state, link_layer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Setting, name, value, source)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, severity, id, what, why, remedy)

namespace {

using enum Severity;
namespace fs = std::filesystem;

constexpr std::size_t kMostRead = 1 << 16;    // bytes of one file
constexpr std::size_t kMostNcclValue = 1023;  // bytes that NCCL takes from a file for one value
constexpr std::size_t kMostShown = 60;        // bytes of a value that are shown

// What is in a regular file. Nothing: there is none, or it can't be read. (A pipe in its place must
// not be waited for.)
std::optional<std::string> content_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::string bytes(kMostRead, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}
std::string first_line_of(const std::string& path) {
  const std::string content = content_of(path).value_or("");
  return content.substr(0, content.find('\n'));
}

// The names in a folder, sorted; empty: none, or no such folder.
std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void read_ports(const std::string& root, Check& check) {
  const std::string devices = root + "/sys/class/infiniband/";
  for (const std::string& device : names_in(devices)) {
    for (const std::string& port : names_in(devices + device + "/ports")) {
      const std::optional<std::uint64_t> number = whole_number(port, 255);
      if (number.value_or(0) == 0) continue;
      const std::string path = devices + device + "/ports/" + port;
      const std::string state = first_line_of(path + "/state");  // "4: ACTIVE"
      const std::size_t colon = state.find(": ");
      check.ports.push_back({device, static_cast<int>(*number),
                             colon == state.npos ? state : state.substr(colon + 2),
                             first_line_of(path + "/link_layer")});
    }
  }
}

bool is_relevant(std::string_view name) {
  constexpr std::string_view kOthers[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING",
                                          "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES",
                                          "WEIR_NCCL_LIBRARY"};
  return name.starts_with("NCCL_") ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

using InForce = std::map<std::string, Setting>;

// As NCCL: no white space is dropped, nothing is quoted, and what is set stays as it is. `named`:
// by the user, so that it is to be there.
void read_file(const std::string& root, const std::string& path, bool named, Check& check,
               InForce& in_force) {
  // Below another root a relative path leads nowhere.
  const bool leads_nowhere = !path.starts_with('/') && !root.empty();
  const auto content = leads_nowhere ? std::nullopt : content_of(root + path);
  std::error_code error;
  if (content) {
    check.files.push_back(path);
  } else if (named || fs::exists(fs::symlink_status(root + path, error))) {
    check.unread.push_back(path);
  }
  std::istringstream lines(content.value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    const std::string name = line.substr(0, equals);
    if (equals == line.npos || name.find(' ') != name.npos || !is_relevant(name)) continue;
    in_force.emplace(name, Setting{name, line.substr(equals + 1, kMostNcclValue), path});
  }
}

void read_settings(const std::string& root, const Environment& environment, const std::string& home,
                   Check& check) {
  InForce in_force;
  for (const auto& [name, value] : environment) {
    if (is_relevant(name)) in_force.emplace(name, Setting{name, value, "environment"});
  }
  if (const std::string* const named = value_of(environment, "NCCL_CONF_FILE")) {
    read_file(root, *named, true, check, in_force);
  } else if (!home.empty()) {
    read_file(root, home + "/.nccl.conf", false, check, in_force);
  }
  read_file(root, "/etc/nccl.conf", false, check, in_force);
  for (auto& [name, setting] : in_force) check.settings.push_back(std::move(setting));
}

// "NAME=value", cut where it is long.
std::string shown(const Setting& setting) {
  const bool fits = setting.value.size() <= kMostShown;
  return setting.name + "=" + setting.value.substr(0, kMostShown) + (fits ? "" : "...");
}

bool ib_disabled(const Check& check) {
  const Setting* network = check.find("NCCL_NET");
  return check.number("NCCL_IB_DISABLE").value_or(0) != 0 ||
         (network != nullptr && ::strcasecmp(network->value.c_str(), "Socket") == 0);
}

void look_at_files(Check& check) {
  for (const std::string& path : check.unread) {
    check.findings.push_back(
        {warning, "configuration_file", path + ": a configuration file that can't be read",
         "It is missing, or no regular file, or closed to this user; NCCL goes "
         "on without it, and says nothing.",
         "Make it readable, or correct NCCL_CONF_FILE."});
  }
}

// NCCL_IB_HCA says which ports are meant to be used: then NCCL's log says what became of them.
void look_at_ports(Check& check) {
  if (ib_disabled(check) || check.find("NCCL_IB_HCA") != nullptr) return;
  for (const RdmaPort& port : check.ports) {
    if (port.state == "ACTIVE") continue;
    check.findings.push_back(
        {warning, "rdma_port_down",
         fmt::format("{} port {} is not active: {}", port.device, port.port,
                     port.state.empty() ? "its state is unknown" : port.state),
         "NCCL leaves it out; where other nodes use theirs, traffic is uneven.",
         "Check the cable and the switch (InfiniBand: the subnet manager too), or leave the port "
         "out on all nodes with NCCL_IB_HCA."});
  }
}

// A rule on one variable, as NCCL reads it: zero is wrong, or anything but zero. Where a
// setting is `refused`, load_nccl() does not work with it in the environment, which is an error;
// from a file it is none, as load_nccl() sets another value in the environment, which wins.
struct SettingRule {
  std::string_view id, variable;
  enum class Wrong { zero, not_zero } wrong;
  Severity severity;
  const char *what, *why, *remedy;
  bool refused = false;
};
using enum SettingRule::Wrong;
constexpr SettingRule kSettingRules[] = {
    {"graph_register", "NCCL_GRAPH_REGISTER", not_zero, warning,
     "NCCL registers the buffers of captures itself",
     "It takes the whole physical handle under a buffer, on some ranks and not on others where "
     "buffers straddle handles; peers keep that memory until the graph is gone. Weir's pools "
     "move memory between addresses meanwhile.",
     "Set NCCL_GRAPH_REGISTER=0, and register segments explicitly.", true},
    {"cumem_disabled", "NCCL_CUMEM_ENABLE", zero, warning, "memory is shared by cudaIpc calls",
     "They are not legal in a capture, and segments of Weir's can't be registered.",
     "Leave it out."},
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
};

bool is_wrong(const SettingRule& rule, const Check& check) {
  const std::optional<std::int64_t> value = check.number(rule.variable);
  return value && (*value == 0) == (rule.wrong == zero);
}

void examine(Check& check) {
  look_at_files(check);
  look_at_ports(check);
  for (const SettingRule& rule : kSettingRules) {
    if (!is_wrong(rule, check)) continue;
    const Setting& setting = *check.find(rule.variable);
    const bool fails = rule.refused && setting.source == "environment";
    check.findings.push_back({fails ? error : rule.severity, std::string(rule.id),
                              shown(setting) + ": " + rule.what, rule.why, rule.remedy});
  }
  std::stable_sort(check.findings.begin(), check.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
}

// One '?' for each byte that is no printable ASCII character.
std::string line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return text + '\n';
}

}  // namespace

const Setting* Check::find(std::string_view name) const {
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const Setting& setting) { return setting.name == name; });
  return found == settings.end() || found->value.empty() ? nullptr : &*found;
}

std::optional<std::int64_t> Check::number(std::string_view name) const {
  const Setting* setting = find(name);
  if (setting == nullptr) return std::nullopt;
  return std::strtoll(setting->value.c_str(), nullptr, 0);  // as NCCL reads it
}

bool Check::has_error() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == error; });
}

Check check_machine(const std::string& root, const Environment& environment,
                    const std::string& home) {
  const std::string folder = root.substr(0, root.find_last_not_of('/') + 1);  // this one's: ""
  Check check;
  read_ports(folder, check);
  read_settings(folder, environment, home, check);
  examine(check);
  return check;
}

std::string check_text(const Check& check) {
  std::string text = fmt::format("RDMA ports: {}\n", check.ports.size());
  for (const RdmaPort& port : check.ports) {
    text += line(fmt::format("  {} port {}: {}, {}", port.device, port.port,
                             port.state.empty() ? "unknown" : port.state, port.link_layer));
  }
  text += fmt::format("\nSettings in force: {}\n", check.settings.size());
  for (const std::string& file : check.files) text += line("  read " + file);
  for (const Setting& setting : check.settings) {
    text += line(fmt::format("  {} ({})", shown(setting), setting.source));
  }
  text += fmt::format("\nFindings: {}\n", check.findings.size());
  for (const Finding& finding : check.findings) {
    text += line(fmt::format("  {:<8} {} [{}]", finding.severity == error ? "error" : "warning",
                             finding.what, finding.id));
    text += line("           why: " + finding.why);
    text += line("           remedy: " + finding.remedy);
  }
  return text;
}

std::string check_json(const Check& check) {
  const nlohmann::json all = {{"weir_comm_check", 5},
                              {"rdma_ports", check.ports},
                              {"settings", check.settings},
                              {"settings_files", check.files},
                              {"settings_unread", check.unread},
                              {"findings", check.findings}};
  // What is no UTF-8 in a file or a variable is replaced: it must not end the program.
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

}  // namespace weir
