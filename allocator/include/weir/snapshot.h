// SPDX-License-Identifier: Apache-2.0
// A snapshot of a device heap as a file: JSON, described in docs/recording.md.
#pragma once

#include <string>

#include "weir/device_heap.h"
#include "weir/result.h"

namespace weir {

// Returns the snapshot as one line of JSON.
std::string to_json(const HeapSnapshot& snapshot);

// Writes the snapshot to the file `path`, compressed with gzip if the name ends in ".gz". The file
// appears whole, or not at all; one of that name is replaced. Errors: invalid_input (it can't be
// written; names it).
Status write_snapshot(const HeapSnapshot& snapshot, const std::string& path);

}  // namespace weir
