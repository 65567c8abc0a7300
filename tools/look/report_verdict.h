// SPDX-License-Identifier: Apache-2.0
// What a file says, in a few sentences: what ran out or peaked, where, why, and what would help.
#pragma once

#include <string>
#include <vector>

#include "look/report.h"

namespace weir {

// The first says what failed, or how high the peak was. No line ends.
std::vector<std::string> verdict_of(const Report& report);

// "device 1 of 4 (--device 0: 7.96 GiB, 2: 31.2 GiB)"; "": the file has one.
std::string devices_text(const Origin& origin);

}  // namespace weir
