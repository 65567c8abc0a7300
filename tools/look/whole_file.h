// SPDX-License-Identifier: Apache-2.0
// A file as it is in memory.
#pragma once

#include <string>
#include <vector>

#include "weir/result.h"

namespace weir {

// What the file holds, or what was compressed in it with gzip.
// Errors: invalid_input: it can't be read, or is larger than 4 GiB; names it and why.
Result<std::vector<char>> read_whole_file(const std::string& path);

}  // namespace weir
