// SPDX-License-Identifier: Apache-2.0
// Functions and lines of frames that a recording knows only as an offset into a binary.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "look/stack_calls.h"
#include "weir/recording.h"

namespace weir {

// The stacks of a recording that can be read: `of_stack` is by index into `stacks`.
struct ReadableStacks : CallStacks {
  std::vector<std::vector<std::uint32_t>> stacks;  // whole, but for frames that say nothing
  std::vector<std::uint32_t> number;               // by Event::stack: the index into `stacks`

  const std::vector<std::uint32_t>& whole(std::uint32_t stack) const {
    return stacks[stack < number.size() ? number[stack] : number.front()];
  }
};

enum class Paths : std::uint8_t { full, cut };  // cut: short_path()

// The recording's stacks, with C++ names demangled. A frame "binary+0x12af" gets the function, file
// and line that the binary's debug information has for the offset, as llvm-symbolizer or addr2line
// reads it (the first of the two on the PATH). A binary that was recorded with a relative name is
// looked for in the working folder, then beside the recording. A frame stays as it is if neither
// tool is installed, if the binary is gone or was changed after the recording, or if the tools take
// longer than `limit` in all. Asks no network: neither tool sees DEBUGINFOD_URLS. Innermost
// functions that turn out to be Weir's own are left out, and what is_noise() is.
ReadableStacks readable_stacks(const Recording& recording, Paths paths = Paths::full,
                               std::chrono::milliseconds limit = std::chrono::seconds{10});

}  // namespace weir
