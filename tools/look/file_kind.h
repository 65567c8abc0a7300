// SPDX-License-Identifier: Apache-2.0
// Recognises what kind a file is of by its first bytes.
#pragma once

#include <string>

#include "weir/result.h"

namespace weir {

enum class FileKind {
  trace,      // text: docs/recording.md
  pickle,     // Python's, protocol 2 or later, or JSON: a snapshot of PyTorch's
  json,       // other: a snapshot of Weir's
  recording,  // as WEIR_RECORD writes it
  rmm_log,    // text: as RMM's logging_resource_adaptor writes it
  other,      // none that is known
};

// Of a compressed file it is what was compressed.
// Errors: invalid_input: the file can't be read, or is empty; names it and why.
Result<FileKind> kind_of_file(const std::string& path);

// What is said of a file of no known kind. invalid_input.
Error unknown_kind(const std::string& path);

}  // namespace weir
