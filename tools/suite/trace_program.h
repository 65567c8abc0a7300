// SPDX-License-Identifier: Apache-2.0
// Recorded programs, as the suite runs them.
#pragma once

#include <string>

#include "replay/trace.h"
#include "suite/program.h"
#include "weir/result.h"

namespace weir::suite {

// `name`: of the program. A captured phase runs as the rest does, and blocks of zero bytes are left
// out. A block that another stream used past its free is used by the next stream, until then.
// `with_failed`: requests that failed where the trace was recorded are made too.
Program program_of(const Trace& trace, std::string name, bool with_failed = false);

// A trace (docs/recording.md), an RMM log, a recording of Weir's, or a snapshot that PyTorch
// pickled; with gzip too where `weir report` reads it so; "-": standard input. The program has the
// file's name as program_name() makes it. Errors: invalid_input: names the file, what is wrong and
// the remedy.
Result<Program> read_program(const std::string& path);

// `path` without folders and endings.
std::string program_name(const std::string& path);

}  // namespace weir::suite
