// SPDX-License-Identifier: Apache-2.0
// Reads traces. Whatever is wrong with one is ErrorCode::invalid_input, and the message starts with
// "file:line: ".
#pragma once

#include <string>
#include <string_view>

#include "replay/trace.h"
#include "weir/result.h"

namespace weir {

// The trace in a file, which may be compressed with gzip. A file that ends within a line, or whose
// compressed data is damaged or cut off, is refused.
Result<Trace> read_trace(const std::string& path);

// The trace in `text`; `name` stands for the file's in messages.
Result<Trace> parse_trace(std::string_view text, std::string name);

}  // namespace weir
