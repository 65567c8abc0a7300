// Functions and lines of frames that a recording knows only as an offset into a binary.
#pragma once

#include <chrono>
#include <vector>

#include "weir/recording.h"

namespace weir {

// The recording's frames, with C++ names demangled. A frame "binary+0x12af" gets the function, file
// and line that the binary's debug information has for the offset, as llvm-symbolizer or addr2line
// reads it (the first of the two on the PATH). A frame stays as it is if neither tool is installed,
// if the binary is gone or was changed after the recording, or if the tools take longer than
// `limit` in all. Asks no network: neither tool sees DEBUGINFOD_URLS.
std::vector<RecordedFrame> resolved_frames(const Recording& recording,
                                           std::chrono::milliseconds limit = std::chrono::seconds{
                                               10});

}  // namespace weir
