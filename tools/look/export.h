// SPDX-License-Identifier: Apache-2.0
// `weir timeline` and `weir convert`, but for their command lines.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "look/load.h"
#include "look/symbols.h"
#include "weir/recording.h"
#include "weir/result.h"

namespace weir {

enum class LookFormat { memory_viz, perfetto, csv };

// Writes all of the recording to the file `path`, which must not be the one it was read from.
// memory_viz: a pickle if the name ends with ".pickle", JSON otherwise; any: compressed with gzip
// if it ends with ".gz". `paths`: of the sources in csv. `origin`: for memory_viz. Errors:
// invalid_argument, naming the file and the remedy.
Status export_timeline(const Recording& recording, LookFormat format, const std::string& path,
                       Paths paths = Paths::cut, const Origin& origin = {});

// What there is once the first `events` events have happened, as the beginning of a recording in
// which nothing happens.
Recording moment_of(const Recording& recording, std::size_t events);

// How many events have happened at a moment as the command line names it: "begin", "end",
// "peak-live", "peak-reserved", or the time since the recording began ("1.5s", "20ms", "300us").
// Errors: invalid_argument, with what is allowed; also of a time after the end.
Result<std::size_t> parse_moment(std::string_view text, const Recording& recording);

// Writes the file `input` (as load() takes it, with its options) as a trace to `output`. A PyTorch
// snapshot and an RMM log are converted as they are, and not replayed. Returns what was left out,
// in words; "": nothing. Errors: as load(); invalid_argument, naming the file and the remedy.
Result<std::string> convert_to_trace(const std::string& input, const std::string& output,
                                     const LoadOptions& options = {});

}  // namespace weir
