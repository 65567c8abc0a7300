// SPDX-License-Identifier: Apache-2.0
// `weir comm check`: the settings of NCCL in force, and what of them and of this machine breaks
// captures or RDMA without a word from NCCL.
//
// All sources are arguments (a root folder, an environment, a home folder), so a test can pass an
// invented machine. Threads: all functions may be called concurrently. docs/comm.md explains
// each line, each finding, and the members of the JSON, and names the tools that tell the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/comm/launch.h"

namespace weir {

struct RdmaPort {
  std::string device;  // "mlx5_0"
  int number = 1;
  std::string state;       // "ACTIVE", "DOWN"; empty: not known
  std::string link_layer;  // "InfiniBand", "Ethernet"
};

struct Setting {
  std::string name, value;
  std::string source;  // "environment", or a file
};

// A configuration file that can't be read.
struct Unread {
  std::string path, why;
};

enum class Severity { error, warning, note };
std::string_view name_of(Severity severity);

// `id` names the rule, and stays the same from version to version.
struct Finding {
  Severity severity = Severity::note;
  std::string id, what, why, remedy;
};

struct Check {
  std::vector<RdmaPort> ports;

  // The variables in force: NCCL's, those of CUDA and Weir that matter to NCCL, and those that give
  // a process its rank (weir/comm/launch.h). They are read as NCCL reads them: the environment
  // first, then the user's file, then the system's file.
  std::vector<Setting> settings;   // sorted by name, one for each name
  std::vector<std::string> files;  // configuration files that were read
  std::vector<Unread> unread;      // and those that can't be

  std::vector<Finding> findings;  // errors first

  // Null: not set, or empty.
  const Setting* find(std::string_view name) const;
  // Parsed as NCCL parses a number: trailing text is ignored, and text without a number is 0.
  std::optional<std::int64_t> number(std::string_view name) const;
  bool has_error() const;
};

// `home`: the user's home folder from the system's user database; empty: none.
Check check_machine(const std::string& root, const Environment& environment,
                    const std::string& home);
// For people: printable characters only; ends with a line end.
std::string check_text(const Check& check);
// For programs: one JSON object. Ends with a line end.
std::string check_json(const Check& check);

}  // namespace weir
