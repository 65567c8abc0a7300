// SPDX-License-Identifier: Apache-2.0
// Cases of each rule: where it has to speak, and where it has to be silent.
#pragma once

#include <functional>
#include <vector>

#include "weir/comm/check.h"

namespace weir::test {

using Change = std::function<void(Machine&)>;

// On the machine with eight GPUs, changed. `says`: a part of what is found.
struct Spoken {
  const char* id;
  EnvironmentVariables environment;
  Change change;
  Severity severity;
  const char* says;
};
struct Silent {
  const char* id;
  EnvironmentVariables environment;
  Change change;
};

extern const std::vector<Spoken> kSpoken;
extern const std::vector<Silent> kSilent;

}  // namespace weir::test
