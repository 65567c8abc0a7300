#include <algorithm>
#include <map>

#include "comm/check/tree.h"
#include "comm/launch/launchers.h"
#include "comm/numbers.h"
#include "weir/comm/check.h"
#include "weir/comm/launch.h"
#include "weir/config.h"

namespace weir {
namespace check {
namespace {

constexpr std::size_t kMostValue = 1023;  // bytes that NCCL takes from a file for one value

bool is_relevant(const std::string& name) {
  constexpr std::string_view kOthers[] = {"CUDA_DEVICE_MAX_CONNECTIONS",
                                          "CUDA_LAUNCH_BLOCKING",
                                          "CUDA_MODULE_LOADING",
                                          "CUDA_VISIBLE_DEVICES",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "SLURM_NODEID",
                                          "WEIR_MEET",
                                          "WEIR_NCCL_LIBRARY"};
  if (name.starts_with("NCCL_")) return true;
  for (const Launcher& launcher : kLaunchers) {
    for (const std::string_view each :
         {launcher.rank, launcher.ranks, launcher.local_rank, launcher.local_ranks}) {
      if (name == each) return true;
    }
  }
  return name == "SLURM_STEP_TASKS_PER_NODE" ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

// What NCCL would make of a line that sets nothing that it knows; empty: it is in order.
std::string odd_in(const std::string& line) {
  const std::size_t equals = line.find('=');
  if (equals == std::string::npos) return "it has no '=': NCCL passes over it";
  const std::string_view name = std::string_view(line).substr(0, equals);
  if (name.empty()) return "no name stands before its '='";
  if (trimmed(name) != name) {
    return "white space around the name counts as part of it: NCCL does not know the variable";
  }
  if (!name.starts_with("NCCL_")) return "the name does not begin with NCCL_";
  const std::string_view value = std::string_view(line).substr(equals + 1);
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
  for (std::string& line : split(*text, '\n')) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::string why = odd_in(line);
    if (!why.empty()) settings.odd_lines.push_back({path, number, why});
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    const std::string name = line.substr(0, equals);
    if (!is_relevant(name) || trimmed(name) != name) continue;
    const std::string value = line.substr(equals + 1, kMostValue);
    in_force.emplace(name, Setting{name, value, path});
  }
}

// The environment of a program that starts with these variables.
class GivenEnvironment final : public Environment {
 public:
  explicit GivenEnvironment(const EnvironmentVariables& variables) : variables_(variables) {}
  std::optional<std::string> get(const std::string& name) const override {
    const auto found = variables_.find(name);
    if (found == variables_.end() || found->second.empty()) return std::nullopt;
    return found->second;
  }
  void set(const std::string&, const std::string&) override {}
  void unset(const std::string&) override {}
  std::optional<std::string> ancestor(std::string_view command) const override {
    return process_environment().ancestor(command);
  }

 private:
  const EnvironmentVariables& variables_;
};

// One at a time, so that each is reported; then what is wrong with all of them together.
std::vector<std::string> refused_by_config(const EnvironmentVariables& environment) {
  std::vector<std::string> refused;
  std::vector<std::string> accepted;
  for (const auto& [name, value] : environment) {
    std::string entry = name + "=" + value;
    const char* const block[] = {entry.c_str(), nullptr};
    if (const Result<Config> config = Config::from_environment(block); !config) {
      refused.push_back(config.error().message());
    } else {
      accepted.push_back(std::move(entry));
    }
  }
  std::vector<const char*> block;
  block.reserve(accepted.size() + 1);
  for (const std::string& entry : accepted) block.push_back(entry.c_str());
  block.push_back(nullptr);
  const Result<Config> config = Config::from_environment(block.data());
  if (!config) return refused;
  if (const Status together = config->check(); !together) {
    refused.push_back(together.error().message());
  }
  return refused;
}

}  // namespace
}  // namespace check

const std::string* Settings::find(std::string_view name) const {
  for (const Setting& setting : list) {
    if (setting.name == name) return setting.value.empty() ? nullptr : &setting.value;
  }
  return nullptr;
}

std::optional<std::int64_t> Settings::number(std::string_view name) const {
  const std::string* value = find(name);
  if (value == nullptr) return std::nullopt;
  return nccl_number_in(*value);
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
  if (const Result<Launch> launch = find_launch(check::GivenEnvironment(environment)); !launch) {
    settings.no_launch = launch.error().message();
  }
  settings.refused = check::refused_by_config(environment);
  check::Tree tree(root.substr(0, root.find_last_not_of('/') + 1));
  const auto named = environment.find("NCCL_CONF_FILE");
  if (named != environment.end() && !named->second.empty()) {
    const std::string& path = named->second;
    // Below another root a relative path leads nowhere.
    if ((path.front() != '/' && !tree.at("").empty()) || !tree.exists(path)) {
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
