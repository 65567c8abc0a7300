#include <algorithm>
#include <map>

#include "comm/check/tree.h"
#include "comm/launch/launchers.h"
#include "comm/numbers.h"
#include "weir/comm/check.h"

namespace weir {
namespace check {
namespace {

constexpr std::size_t kMostValue = 1023;  // bytes that NCCL takes from a file for one value

bool is_relevant(std::string_view name) {
  constexpr std::string_view kOthers[] = {"CUDA_DEVICE_MAX_CONNECTIONS",
                                          "CUDA_LAUNCH_BLOCKING",
                                          "CUDA_MODULE_LOADING",
                                          "CUDA_VISIBLE_DEVICES",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "WEIR_MEET",
                                          "WEIR_NCCL_LIBRARY"};
  const auto is_launchers = [&](const Launcher& launcher) {
    return name == launcher.rank || name == launcher.ranks || name == launcher.local_rank ||
           name == launcher.local_ranks;
  };
  return name.starts_with("NCCL_") ||
         std::any_of(kLaunchers.begin(), kLaunchers.end(), is_launchers) ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

// Why NCCL takes no setting from a line, or another than was meant; empty: it is in order.
std::string odd_in(std::string_view line) {
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos) return "it has no '=': NCCL passes over it";
  const std::string_view name = line.substr(0, equals), value = line.substr(equals + 1);
  if (name.empty()) return "no name stands before its '='";
  if (trimmed(name) != name) {
    return "white space around the name counts as part of it: NCCL does not know the variable";
  }
  if (!name.starts_with("NCCL_")) return "the name does not begin with NCCL_";
  if (trimmed(value) != value) return "white space around the value counts as part of it";
  if (value.size() > kMostValue) return "the value is longer than 1023 bytes: NCCL cuts it";
  return {};
}

// As NCCL: no white space is dropped, nothing is quoted, and what is set stays as it is.
void read_file(Tree& tree, const std::string& path, Settings& settings,
               std::map<std::string, Setting>& in_force) {
  if (!tree.exists(path)) return;
  const std::optional<std::string> text = tree.text(path);
  if (!text) return;
  settings.files.push_back(path);
  int number = 0;
  for (const std::string& line : split(*text, '\n')) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::string why = odd_in(line);
    if (!why.empty()) settings.odd_lines.push_back({path, number, why});
    const std::size_t equals = line.find('=');
    const std::string name = line.substr(0, equals);
    if (equals == std::string::npos || trimmed(name) != name || !is_relevant(name)) continue;
    in_force.emplace(name, Setting{name, line.substr(equals + 1, kMostValue), path});
  }
}

}  // namespace
}  // namespace check

const Setting* Settings::find(std::string_view name) const {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Setting& setting) { return setting.name == name; });
  return found == list.end() || found->value.empty() ? nullptr : &*found;
}

std::optional<std::int64_t> Settings::number(std::string_view name) const {
  const Setting* setting = find(name);
  if (setting == nullptr) return std::nullopt;
  return nccl_number_in(setting->value);
}

EnvironmentVariables environment_of(const char* const* entries) {
  EnvironmentVariables environment;
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    const std::string entry = *entries;
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) {
      environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  return environment;
}

Settings read_settings(const std::string& root, const EnvironmentVariables& environment,
                       const std::string& home) {
  Settings settings;
  std::map<std::string, Setting> in_force;
  for (const auto& [name, value] : environment) {
    if (check::is_relevant(name)) in_force.emplace(name, Setting{name, value, "environment"});
  }
  check::Tree tree(root);
  const auto named = environment.find("NCCL_CONF_FILE");
  if (named != environment.end() && !named->second.empty()) {
    const std::string& path = named->second;
    // Below another root a relative path leads nowhere.
    if ((path.front() != '/' && !tree.is_this_machine()) || !tree.exists(path)) {
      settings.unread.push_back({path, "there is no such file"});
    } else {
      check::read_file(tree, path, settings, in_force);
    }
  } else if (!home.empty()) {
    check::read_file(tree, home + "/.nccl.conf", settings, in_force);
  }
  check::read_file(tree, "/etc/nccl.conf", settings, in_force);
  for (const Unread& unread : tree.unread()) settings.unread.push_back(unread);
  for (auto& [name, setting] : in_force) settings.list.push_back(std::move(setting));
  return settings;
}

}  // namespace weir
