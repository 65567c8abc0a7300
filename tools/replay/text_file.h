// SPDX-License-Identifier: Apache-2.0
// Writes a whole file.
#pragma once

#include <string>
#include <string_view>

#include "weir/result.h"

namespace weir {

// Replaces the file `path`, compressed with gzip when its name ends with ".gz"; /dev/stdout,
// /dev/stderr and /dev/fd/N are written through the open descriptor, after what was printed before.
// Errors: invalid_input, naming the file and why.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace weir
