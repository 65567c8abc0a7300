// SPDX-License-Identifier: Apache-2.0
// `weir comm check`: the settings of NCCL in force, and what of this machine and its settings
// breaks captures or RDMA without a word from NCCL.
//
// Three steps, each of which returns a value: read_machine() and read_settings() collect the facts,
// examine() applies the rules, check_text() and check_json() report. All sources are arguments (a
// root folder, an environment, a home folder), so a test can pass an invented machine.
//
// A thing that the machine lacks is absent from the value; Machine::unread lists files that exist
// and can't be read. Threads: all functions may be called concurrently. docs/comm.md explains
// each finding and the members of the JSON, and names the tools that tell the rest.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/result.h"

namespace weir {

// The version of that NCCL library, as "2.28.9". Errors: unavailable.
Result<std::string> nccl_version_of(const std::string& library);

struct RdmaPort {
  std::string device;  // "mlx5_0"
  int number = 1;
  std::string state;       // "ACTIVE", "DOWN"; empty: not known
  std::string link_layer;  // "InfiniBand", "Ethernet"
};

struct Unread {
  std::string path, why;
};

struct Machine {
  std::string root;
  int gpus = 0;              // that the driver lists
  std::string kernel;        // version; empty: not known
  bool open_driver = false;  // NVIDIA's open kernel modules, which dma-buf needs
  bool peermem = false;      // nvidia_peermem is loaded
  std::vector<RdmaPort> rdma;
  std::string nccl;     // version; empty: none
  std::string no_nccl;  // why there is none
  std::vector<Unread> unread;

  // Can the driver export GPU memory to network cards as a dma-buf? (Linux 5.12, the open driver.)
  bool has_dma_buf() const;
};

// `nccl_library`: the library whose version is wanted; empty: none is loaded.
Machine read_machine(const std::string& root, const std::string& nccl_library);

using EnvironmentVariables = std::map<std::string, std::string>;
// From entries "NAME=value", as in environ; null-terminated.
EnvironmentVariables environment_of(const char* const* entries);

struct Setting {
  std::string name, value;
  std::string source;  // "environment", or a file
};

// The variables in force: NCCL's, those of CUDA and Weir that matter to NCCL, and those that give a
// process its rank (weir/comm/launch.h). They are read as NCCL reads them: the environment first,
// then the user's file, then the system's file.
struct Settings {
  std::vector<Setting> list;       // sorted by name, one for each name
  std::vector<Unread> unread;      // configuration files
  std::vector<std::string> files;  // configuration files that were read

  // Null: not set, or empty.
  const Setting* find(std::string_view name) const;
  // Parsed as NCCL parses a number: trailing text is ignored, and text without a number is 0.
  std::optional<std::int64_t> number(std::string_view name) const;
};

// `home`: the user's home folder from the system's user database; empty: none.
Settings read_settings(const std::string& root, const EnvironmentVariables& environment,
                       const std::string& home);

enum class Severity { error, warning, note };
std::string_view name_of(Severity severity);

// `id` names the rule, and stays the same from version to version.
struct Finding {
  Severity severity = Severity::note;
  std::string id, what, why, remedy;
};
using Findings = std::vector<Finding>;

// The ids of all rules.
std::vector<std::string_view> rule_ids();
// The findings of all rules, errors first.
Findings examine(const Machine& machine, const Settings& settings);
bool has_error(const Findings& findings);

struct Check {
  Machine machine;
  Settings settings;
  Findings findings;
};

// For people: printable characters only; ends with a line end.
std::string check_text(const Check& check);
// For programs: one JSON object. Ends with a line end.
std::string check_json(const Check& check);

}  // namespace weir
