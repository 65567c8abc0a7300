// SPDX-License-Identifier: Apache-2.0
// Whatever a person wants to look at, as a recording.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "look/file_kind.h"
#include "look/origin.h"
#include "weir/recording.h"
#include "weir/result.h"

namespace weir {

struct RecordedTrace;

struct LoadOptions {
  std::optional<int> device = {};  // of several; none: as pytorch_trace() chooses
  // Called now and then with what was read and replayed, and what is to be.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
  // Called with the program of a trace, a log or a snapshot, for Origin::help.
  std::function<std::optional<Help>(const RecordedTrace& program)> help = {};
};

// A recording, and what the file says beside it.
struct Loaded : Recording {
  Origin origin;
};

// `path`: a recording; a snapshot (its blocks and pages, as the beginning of a recording in which
// nothing happens); a trace (docs/recording.md), which is replayed on a simulated device first; or
// a memory snapshot that PyTorch pickled, or an RMM log, likewise. It may be a pipe; "-" is
// standard input. Errors: invalid_input (names the file, what is wrong and the remedy).
Result<Loaded> load(const std::string& path, const LoadOptions& options = {});

// What a command returns that has shown what there is of a damaged file. Errors: invalid_input
// (names the file, what is missing and the remedy), unless `damage` (Recording::damage) is empty.
Status damage_status(const std::string& source, const std::string& damage);

}  // namespace weir
