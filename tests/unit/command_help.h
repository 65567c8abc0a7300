// SPDX-License-Identifier: Apache-2.0
// What a program's --help lists, as CLI11 writes it.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace weir::test {

// The names in a section such as "Options", "Positionals" or "Subcommands": "-o,--output". Without
// --help itself.
inline std::vector<std::string> names_in_help(const std::string& help, const std::string& section) {
  std::istringstream lines(help);
  std::vector<std::string> names;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == section + ":") {
      inside = true;
    } else if (line.empty() || line.front() != ' ') {
      inside = false;
    } else if (inside && line.find_first_not_of(' ') == 2) {
      std::string name = line.substr(2, line.find(' ', 2) - 2);
      name =
          name.substr(0, name.find_first_of("{["));  // the value that a flag stands for, or takes
      if (name != "-h,--help") names.push_back(name);
    }
  }
  return names;
}

}  // namespace weir::test
