// SPDX-License-Identifier: Apache-2.0
// A snapshot of Weir's (docs/recording.md), as a recording.
#pragma once

#include <string>
#include <string_view>

#include "weir/recording.h"
#include "weir/result.h"

namespace weir {

// Its heaps, pages and blocks, as the beginning of a recording in which nothing happens. A stream
// that a block waits for is a fence on it.
// Errors: invalid_input (no snapshot, or one of a newer version; names the file and the remedy).
Result<Recording> read_snapshot(const std::string& path);
Result<Recording> parse_snapshot(std::string_view json, const std::string& name);

}  // namespace weir
