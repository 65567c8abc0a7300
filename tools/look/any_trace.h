// SPDX-License-Identifier: Apache-2.0
// Whatever a program's requests were recorded in, as a trace.
#pragma once

#include <optional>
#include <string>

#include "look/file_kind.h"
#include "look/input_file.h"
#include "look/pickle_reader.h"
#include "look/pytorch_trace.h"
#include "replay/trace.h"
#include "weir/result.h"

namespace weir {

// A trace, and what the file says beside it if it is a snapshot of PyTorch's, whose text is taken.
struct RecordedTrace : Trace {
  PytorchTrace snapshot;
};

// By the content. Errors: as kind_of_file(); a `device` of another kind than a snapshot of
// PyTorch's.
Result<FileKind> kind_of(const InputFile& input, std::optional<int> device);

// `kind`: a trace, an RMM log, a snapshot that PyTorch pickled, or a recording. The trace has
// input.name(). Errors: invalid_input: names input.path(), what is wrong and the remedy.
Result<RecordedTrace> read_trace_of(const InputFile& input, FileKind kind,
                                    std::optional<int> device,
                                    const Pickle::Progress& progress = {});

// `path`: a trace, an RMM log, a recording, or a snapshot with its history that PyTorch pickled;
// "-": standard input. `device`: of several in the file. `progress`: of reading a snapshot, the
// part that takes long. The trace has the name that `path` gives. Errors: invalid_input, naming the
// file, what is wrong and the remedy: of a snapshot of Weir's too, which holds one moment.
Result<RecordedTrace> read_any_trace(const std::string& path, std::optional<int> device = {},
                                     const Pickle::Progress& progress = {});

}  // namespace weir
