// SPDX-License-Identifier: Apache-2.0
// Recorded programs, as the suite runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "replay/trace.h"
#include "suite/program.h"
#include "weir/result.h"

namespace weir::suite {

// `name`: of the program. A captured phase runs as the rest does, and blocks of zero bytes are left
// out. A block that another stream used past its free is used by the next stream, until then.
// `with_failed`: requests that failed where the trace was recorded are made too.
Program program_of(const Trace& trace, std::string name, bool with_failed = false);

struct ReadOptions {
  std::optional<int> device = {};  // of several in the file
  bool with_failed = false;        // as of program_of()
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};  // of read_any_trace()
};

// A trace (docs/recording.md), an RMM log, a recording of Weir's, or a snapshot that PyTorch
// pickled; with gzip too where `weir report` reads it so; "-": standard input. The program has the
// file's name without folders and endings. Errors: invalid_input: names the file, what is wrong and
// the remedy.
Result<Program> read_program(const std::string& path, const ReadOptions& options = {});

}  // namespace weir::suite
