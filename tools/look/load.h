// Whatever a person wants to look at, as a recording.
#pragma once

#include <string>

#include "weir/recording.h"
#include "weir/result.h"

namespace weir {

// `path`: a recording; a snapshot (its blocks and pages, as the beginning of a recording in which
// nothing happens); a trace (docs/trace.md), which is replayed on a simulated device first; or a
// memory snapshot that PyTorch pickled, likewise. The kind of file is recognised by its content.
// Errors: invalid_input (names the file, what is wrong and the remedy).
Result<Recording> load(const std::string& path);

}  // namespace weir
