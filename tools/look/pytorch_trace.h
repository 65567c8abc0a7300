// SPDX-License-Identifier: Apache-2.0
// A memory snapshot that PyTorch pickled (torch.cuda.memory._dump_snapshot), as a trace.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "look/origin.h"
#include "look/pickle_reader.h"
#include "look/replayed.h"
#include "weir/result.h"

namespace weir {

struct PytorchTrace {
  std::string text;    // as docs/recording.md says
  TraceStacks stacks;  // of its blocks
  // What PyTorch had reserved, at each change; times are those of the trace.
  std::vector<RecordedReserved> reserved;
  std::vector<std::uint64_t> addresses;  // of its blocks
  int device = 0;
  std::vector<DeviceInFile> devices;  // all of the file
  std::optional<Bytes> failed_with;   // free on the device when the last request failed
  Bytes failed_request;               // its size; zero: none failed
  // Then; else when most was reserved. Its `events`: beginnings and ends of blocks.
  std::optional<Held> held;
  bool lacks_segments = false;       // as Origin has it
  std::string damage;                // as Recording has it
  bool expandable_segments = false;  // the allocator's settings
  std::optional<Bytes> max_split;
};

// The history of one device. Blocks that were there before it begins are allocated at its first
// moment, in order of address: those that it frees without having allocated them, and those of the
// final segments that it says nothing of.
// `device`: none: the one where a request failed; else the one that held the most memory.
// Errors: invalid_input: no pickle, or none of a snapshot; no such device. Names the file.
Result<PytorchTrace> read_pytorch_trace(const std::string& path, std::optional<int> device,
                                        const Pickle::Progress& progress = {});
Result<PytorchTrace> pytorch_trace(const Pickle& pickle, const std::string& name,
                                   std::optional<int> device);

}  // namespace weir
