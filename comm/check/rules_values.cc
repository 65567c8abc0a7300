#include <algorithm>

#include "comm/check/rules.h"
#include "comm/check/tree.h"
#include "comm/check/variables.h"
#include "comm/launch/launchers.h"

namespace weir::check {
namespace {

// A path of this machine may be relative; below another root such a one leads nowhere.
std::string wrong_with_file(const Machine& machine, const std::string& path) {
  const bool here = machine.root == "/";
  if (!here && path.front() != '/') return {};
  const Tree tree(here ? "" : machine.root);
  if (!tree.exists(path)) return "there is no such file";
  return tree.is_folder(path) ? "it is a folder, not a file" : "";
}

// The settings as a program would read them, but for the processes above it.
class ReadSettings : public Environment {
 public:
  explicit ReadSettings(const Settings& settings) : settings_(settings) {}
  std::optional<std::string> get(const std::string& name) const override {
    const std::string* const value = settings_.find(name);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  void set(const std::string&, const std::string&) override {}
  void unset(const std::string&) override {}
  std::optional<std::string> ancestor(std::string_view) const override { return std::nullopt; }

 private:
  const Settings& settings_;
};

}  // namespace

void unknown_variable(const Machine&, const Settings& settings, Findings& findings) {
  for (const Setting& setting : settings.list) {
    if (!setting.name.starts_with("NCCL_") || is_known(setting.name)) continue;
    const std::string_view meant = near_to(setting.name);
    if (!meant.empty()) {
      say(findings, Severity::warning, setting.name + ": NCCL knows no such variable",
          "It is close to " + std::string(meant) + ", and is passed over in silence.",
          "Write " + std::string(meant) + ", if that was meant.");
    } else {
      say(findings, Severity::note, setting.name + ": NCCL 2.28 knows no such variable",
          "It may be a plugin's, of another version, or a typing error; NCCL passes over what it "
          "doesn't know.",
          "Compare it with the documents of what it is for.");
    }
  }
}

void wrong_value(const Machine&, const Settings& settings, Findings& findings) {
  for (const Setting& setting : settings.list) {
    const Variable* variable = variable_named(setting.name);
    const std::string wrong =
        variable == nullptr ? std::string() : wrong_with(*variable, setting.value);
    if (wrong.empty()) continue;
    // NCCL 2.24 and later refuse to make communicators for a bad list of algorithms.
    const bool fails = variable->kind == ValueKind::algorithms;
    say(findings, fails ? Severity::error : Severity::warning,
        shown(settings, setting.name) + ": not a value that it can have",
        "The value: " + wrong + ". It comes from: " + setting.source + ".",
        "Correct it or leave it out (" + std::string(variable->meaning) +
            "; default: " + std::string(variable->fallback) + ").");
  }
}

void configuration_file(const Machine&, const Settings& settings, Findings& findings) {
  for (const Unread& unread : settings.unread) {
    say(findings, Severity::warning, unread.path + ": a configuration file that can't be read",
        unread.why + "; NCCL goes on without it, and says nothing.",
        "Make it readable, or correct NCCL_CONF_FILE.");
  }
  for (const OddLine& line : settings.odd_lines) {
    say(findings, Severity::warning,
        line.file + ", line " + std::to_string(line.line) + ": not as NCCL reads such files",
        "In the line: " + line.why + ".",
        "Write NAME=value, with no white space and no quotes, or begin a comment with #.");
  }
}

void rendezvous(const Machine&, const Settings& settings, Findings& findings) {
  const std::string* id = settings.find("NCCL_COMM_ID");
  if (id == nullptr) return;
  if (!check_nccls_address(ReadSettings(settings))) {
    say(findings, Severity::error, shown(settings, "NCCL_COMM_ID") + ": not HOST:PORT",
        "NCCL refuses to start with it.",
        "Write <ipv4>:<port>, [<ipv6>]:<port> or <host name>:<port>, the address of rank 0.");
    return;
  }
  say(findings, Severity::note,
      shown(settings, "NCCL_COMM_ID") + ": every communicator meets at one fixed place",
      "Rank 0 must own the address, and all ranks must share its subnet (nccl#730). Two jobs with "
      "one port mix without an error.",
      "Give each job a port of its own.");
}

void topology_file(const Machine& machine, const Settings& settings, Findings& findings) {
  for (const std::string_view name : {"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"}) {
    const std::string* path = settings.find(name);
    if (path == nullptr) continue;
    const std::string wrong = wrong_with_file(machine, *path);
    if (wrong.empty()) continue;
    say(findings, Severity::warning, shown(settings, name) + ": " + wrong,
        "NCCL goes on with what it finds out itself.", "Correct the path, or leave it out.");
  }
}

// What load_nccl() takes: a path, or a name that the loader looks for.
void nccl_library(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::string* library = settings.find("WEIR_NCCL_LIBRARY");
  if (library == nullptr) return;
  const bool is_path = library->find('/') != std::string::npos;
  std::string wrong = is_path ? wrong_with_file(machine, *library) : std::string();
  const bool asked = machine.root == "/" && machine.nccl.empty() && !machine.no_nccl.empty();
  if (wrong.empty() && asked) wrong = machine.no_nccl;
  if (wrong.empty()) return;
  say(findings, Severity::error, shown(settings, "WEIR_NCCL_LIBRARY") + ": " + wrong,
      "Weir takes no other library then, and has no NCCL.",
      "Correct the path, or leave it out: libnccl.so.2 is looked for then.");
}

void launch_variables(const Machine&, const Settings& settings, Findings& findings) {
  // (What is wrong with NCCL's own address is rendezvous' to say.)
  if (!settings.no_launch.empty() && check_nccls_address(ReadSettings(settings))) {
    say(findings, Severity::error,
        "No program that asks Weir for its rank starts with these variables",
        "find_launch() says: " + settings.no_launch + ".",
        "Do as it says, in what starts the program; docs/multi-node.md has every launcher's "
        "variables.");
  }
  for (const Launcher& launcher : kLaunchers) {
    const auto set = [&](std::string_view name) { return settings.find(name) != nullptr; };
    const bool named = set(launcher.rank) || set(launcher.ranks) || set(launcher.local_rank);
    if (launcher.kind == LauncherKind::weir || named || !set(launcher.local_ranks)) continue;
    say(findings, Severity::note, shown(settings, launcher.local_ranks) + " stands alone",
        "It says how many ranks this host has; nothing of " + std::string(launcher.name) +
            " says which of them this is, so Weir does not follow it.",
        "Leave it, if another program wants it; for Weir: " + std::string(launcher.start) + ".");
  }
}

void weir_setting(const Machine&, const Settings& settings, Findings& findings) {
  for (const std::string& why : settings.refused) {
    say(findings, Severity::error, "No program that uses Weir's allocator starts with its settings",
        "Config says: " + why + ".",
        "Correct it, or leave it out; docs/configuration.md has every setting.");
  }
}

void debug_without_effect(const Machine&, const Settings& settings, Findings& findings) {
  const std::string* level = settings.find("NCCL_DEBUG");
  std::string upper = level != nullptr ? *level : "";
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  const auto useless = [&](std::string_view name, const char* needed) {
    if (settings.find(name) == nullptr) return;
    say(findings, Severity::note, shown(settings, name) + ": has no effect",
        level == nullptr ? "NCCL_DEBUG is not set, so nothing is logged."
                         : shown(settings, "NCCL_DEBUG") + " logs no such lines.",
        std::string("Set NCCL_DEBUG=") + needed + ", or leave it out.");
  };
  if (upper != "INFO" && upper != "TRACE") useless("NCCL_DEBUG_SUBSYS", "INFO");
  if (upper.empty() || upper == "NONE") useless("NCCL_DEBUG_FILE", "WARN");
}

}  // namespace weir::check
