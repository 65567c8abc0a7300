// SPDX-License-Identifier: Apache-2.0
// Functions and lines of frames that a recording knows only as an offset into a binary.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "weir/recording.h"

namespace weir {

// The stacks of a recording, as Recording has them.
struct ReadableStacks {
  std::vector<RecordedFrame> frames;
  std::vector<std::vector<std::uint32_t>> stacks;
  std::vector<std::uint32_t> number;  // by Event::stack: the index into `stacks`
};

// The recording's stacks, with C++ names demangled. A frame "binary+0x12af" gets the function, file
// and line that the binary's debug information has for the offset, as llvm-symbolizer or addr2line
// reads it (the first of the two on the PATH). A binary that was recorded with a relative name is
// looked for in the working folder, then beside the recording. A frame stays as it is if neither
// tool is installed, if the binary is gone or was changed after the recording, or if the tools take
// longer than `limit` in all. Asks no network: neither tool sees DEBUGINFOD_URLS. Innermost
// functions that turn out to be Weir's own are left out.
ReadableStacks readable_stacks(const Recording& recording,
                               std::chrono::milliseconds limit = std::chrono::seconds{10});

}  // namespace weir
