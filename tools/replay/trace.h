// SPDX-License-Identifier: Apache-2.0
// A recorded program, as `weir replay` runs it: docs/recording.md describes the file format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir/types.h"

namespace weir {

// One block that the program allocated.
struct TraceBlock {
  std::uint64_t id = 0;      // in the file
  Bytes bytes;               // as asked for
  std::uint32_t stream = 0;  // index into Trace::streams
  // Set where another stream used the block past the user's free (`r`): until when. (Where the
  // file has no `f` for it, nobody knows how long: then it is the time of the free itself.)
  static constexpr std::int64_t kFree = -1;
  std::int64_t last_use_us = kFree;  // kFree: none past it
  std::optional<std::int64_t> used_until_us() const {
    if (last_use_us == kFree) return std::nullopt;
    return last_use_us;
  }
};

// Something that the program did. A line `f` is no operation of its own: see used_until_us.
struct TraceOp {
  enum class Kind : std::uint8_t {
    allocate,  // `a`
    free,      // `r`; or `f`, of a block without an `r`
    fence,     // `u`: work on `stream` uses the block
    wait,      // `w`: `stream` waits for `target`
    marker,    // `m`
  };
  Kind kind = Kind::marker;
  std::uint32_t stream = 0;  // index into Trace::streams; not of markers
  std::uint32_t target =
      0;                   // index into blocks; of a wait: into streams; of a marker: into markers
  std::uint32_t line = 0;  // in the file, from 1
  std::int64_t time_us = 0;  // never less than the one before; a marker takes a neighbour's, if it
                             // is no failed request that says its own
};

// A trace that the reader accepted: every block is allocated once, and freed at most once, later.
struct Trace {
  std::string name;                    // the file's, as it was given
  std::string header_json;             // its header line without "# "; empty: it has none
  std::vector<std::uint64_t> streams;  // the file's stream numbers, in order of first use
  std::vector<TraceBlock> blocks;      // in order of allocation
  std::vector<std::string> markers;
  std::vector<TraceOp> ops;
  std::int64_t start_us = 0, end_us = 0;  // of its first and last line with a time
  std::uint32_t lines = 0;
  bool is_of_file = true;  // the lines are the file's; else they were made of what it has
  // The most memory that the program itself had at once: the peak of the sum, over blocks between
  // their `a` and `r`, of their sizes rounded up to kGrain.
  Bytes peak_live;

  Nanoseconds duration() const { return {(end_us - start_us) * 1000}; }
};

}  // namespace weir
