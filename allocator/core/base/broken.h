// SPDX-License-Identifier: Apache-2.0
// Rules of an object that do not hold, named: what its validate() finds.
#pragma once

#include <string>
#include <vector>

namespace weir {

struct Broken {
  std::vector<std::string> rules;

  void note_if(bool broken, const char* what) {
    if (broken) rules.emplace_back(what);
  }
  // `of`: the name of that which the rule is about.
  void note_if(bool broken, const std::string& of, const char* what) {
    if (broken) rules.push_back(of + ": " + what);
  }
  void add(const std::vector<std::string>& more) {
    rules.insert(rules.end(), more.begin(), more.end());
  }
};

}  // namespace weir
