// SPDX-License-Identifier: Apache-2.0
// The log that RMM's logging_resource_adaptor writes (RMM_LOG_FILE), as a trace.
#pragma once

#include <string>
#include <string_view>

#include "replay/trace.h"
#include "weir/result.h"

namespace weir {

// How such a log begins.
inline constexpr std::string_view kRmmLogColumns = "Thread,Time,Action,Pointer,Size,Stream";

// The text of a trace (docs/recording.md), of the log in a file that may be compressed with gzip. A
// block that is freed on another stream than its own was used there. A request that failed is
// a marker. Frees of what was allocated before the log began are left out: a comment says how many.
// A line that ends early is refused. Errors: invalid_input, "file:line: " and what is wrong.
Result<std::string> trace_of_rmm_log(const std::string& path);

// The trace itself.
Result<Trace> read_rmm_log(const std::string& path);

}  // namespace weir
