// SPDX-License-Identifier: Apache-2.0
// Whether a recorded program fits into a GPU: its requests, replayed through models of PyTorch's
// allocator with several settings, and through Weir.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "look/any_trace.h"
#include "suite/program.h"

namespace weir::suite {

// One way to serve the program.
struct FitWay {
  std::string name;
  bool is_pytorch = true;          // else Weir
  bool is_recorded = false;        // the settings that the program ran with
  Bytes held;                      // at most, if there is memory enough
  Bytes replayed;                  // the same, by the replay alone; `held` heeds the file too
  std::optional<bool> fits;        // into the GPU's memory, with cached memory given back in time
  std::optional<double> may_grow;  // by about this factor the blocks that come and go
};

// What the file shows of PyTorch's allocator, which served the program when it was recorded.
struct RecordedFit {
  bool expandable_segments = false;
  Bytes max_split;
  Bytes held;        // at most; zero: not known
  Bytes ran_out_of;  // memory for the program when a request failed; zero: not known, or none did
  Bytes needs;       // at least, since a request failed; zero: none did
};

struct Fit {
  RecordedFit recorded;
  bool shows_peak = true;  // else what came before the file's beginning may have been more
  Bytes peak_live;
  // Of it blocks that come and go: those that the program frees before its end, and activations, as
  // far as stacks tell. Weights and an optimizer's state stay.
  Bytes going;
  std::vector<FitWay> ways;  // PyTorch's default settings first, Weir last
  std::string doubt;  // " A replay ...", if it fits where the program failed; as the verdict has it
};

struct FitOptions {
  std::optional<Bytes> gpu;  // memory that the program may have; none: FitWay::fits is not asked
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

// `trace`: with its snapshot's stacks. Requests that failed where it was recorded are made too.
// Errors: invalid_input: an allocator could not run the program, with memory enough.
Result<Fit> fit_of(const RecordedTrace& trace, const FitOptions& options);

// What to change, by replays. Of a program that ran out of memory: with what it would have fitted
// into the memory that there was. None: the file has no requests to replay.
std::optional<Help> help_of(const RecordedTrace& trace);

}  // namespace weir::suite
