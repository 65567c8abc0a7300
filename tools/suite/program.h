// SPDX-License-Identifier: Apache-2.0
// A program that the suite runs: calls that it makes of its allocator, in order, recorded or
// generated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir/types.h"

namespace weir::suite {

struct ProgramCall {
  enum class Kind : std::uint8_t {
    allocate,
    use,  // work queued so far on `user` uses the block
    free,
    trim,  // memory that is not in use may go back to the driver
  };
  Kind kind = Kind::trim;
  std::uint8_t pool = 0;      // of allocate: the pool of the block; 0: none
  std::uint32_t stream = 0;   // the block's own
  std::uint32_t user = 0;     // of use
  std::uint32_t block = 0;    // 0 to Program::blocks - 1; each is allocated and freed once
  std::uint64_t bytes = 0;    // of the block, as asked for; never 0
  std::int64_t time_us = 0;   // since the program began; never less than that of the call before
  std::int64_t until_us = 0;  // of use: when that work ends, at the earliest
  friend bool operator==(const ProgramCall&, const ProgramCall&) = default;
};

// What a program needs, whoever serves it.
struct ProgramNeeds {
  // The most that was live at once, each block rounded up to kGrain, as everywhere in this project.
  Bytes peak_live;
  // The least that any allocator can hold: the most that was live at once, each block rounded up to
  // kLeastAlignment, and the sum to kDriverPage.
  Bytes lower_bound;
};

// cudaMalloc aligns to this much, and programs rely on it.
inline constexpr Bytes kLeastAlignment = 256_B;
// The driver gives out memory in pages of this size.
inline constexpr Bytes kDriverPage = 2_MiB;

struct Program {
  std::string name;                   // "gpt2_train", "256K-32M:1"
  std::string family;                 // of a generated one; empty: it was recorded
  std::string title;                  // what it does, in words
  std::optional<std::uint64_t> seed;  // of a generated one
  std::uint32_t streams = 1, blocks = 0, pools = 0;
  // Every block is freed in the end, whether the program did that or not.
  std::vector<ProgramCall> calls;
  std::int64_t end_us = 0;
  // What is live after each of `calls`, in bytes rounded up to kGrain.
  std::vector<std::uint64_t> live;
  ProgramNeeds needs;
};

// Fills in `live` and `needs` from the calls.
void add_needs(Program& program);

}  // namespace weir::suite
