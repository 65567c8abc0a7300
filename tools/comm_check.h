// SPDX-License-Identifier: Apache-2.0
// `weir comm check`: NCCL's settings in force, and which of them, or what of this machine, breaks
// captures or RDMA without a message from NCCL. docs/comm.md explains each line, each finding, and
// the members of the JSON.
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
  int port = 1;
  std::string state;       // "ACTIVE", "DOWN"; empty if it is not known
  std::string link_layer;  // "InfiniBand", "Ethernet"
};

struct Setting {
  std::string name, value;
  std::string source;  // "environment", or a file
};

enum class Severity { error, warning };

// What a rule has found. `id` names the rule, and stays the same from version to version.
struct Finding {
  Severity severity = Severity::warning;
  std::string id, what, why, remedy;
};

struct Check {
  std::vector<RdmaPort> ports;

  // The variables in force: NCCL's, and those of CUDA and Weir that matter to NCCL. Weir reads them
  // as NCCL does: the environment first, then the user's file, then the system's file.
  std::vector<Setting> settings;    // sorted by name, one for each name
  std::vector<std::string> files;   // configuration files that were read
  std::vector<std::string> unread;  // configuration files that could not be read

  std::vector<Finding> findings;  // errors first

  // Returns the setting of that name, or null if it is unset or empty.
  const Setting* find(std::string_view name) const;
  // Returns a setting's value as NCCL parses a number (trailing text is ignored, and text without a
  // number is 0), or nothing if the setting is unset or empty.
  std::optional<std::int64_t> number(std::string_view name) const;
  bool has_error() const;
};

// Examines the machine whose files are below the folder `root`. `home` is the user's home folder
// from the system's user database, or empty.
Check check_machine(const std::string& root, const Environment& environment,
                    const std::string& home);
// Returns text for people: printable characters only, with a line end at the end.
std::string check_text(const Check& check);
// Returns one JSON object for programs, with a line end at the end.
std::string check_json(const Check& check);

}  // namespace weir
