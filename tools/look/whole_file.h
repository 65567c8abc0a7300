// SPDX-License-Identifier: Apache-2.0
// A file as it is in memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "replay/gzip_file.h"
#include "weir/result.h"

namespace weir {

// "FILE: can't be read: why". invalid_input.
Error unreadable(const std::string& path, std::string_view why);

// What the file holds, or what was compressed in it with gzip.
// Errors: invalid_input: it can't be read, or is larger than 4 GiB; names it and why.
Result<std::string> read_whole_file(const std::string& path);

// The next bytes of `file`, at most `most` and less than 2^31; 0: the end. `path`: of the file.
// Errors: invalid_input: they can't be read; names the file and why.
Result<std::size_t> read_piece(gzFile file, const std::string& path, char* into, std::size_t most);

}  // namespace weir
