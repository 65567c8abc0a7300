// SPDX-License-Identifier: Apache-2.0
// What the failures of many programs have in common: a table of distinct ones.
//
// A failure is named after the guarantee of the native allocator that is broken, as far as the
// failure tells: 1a memory of a dead pool goes by cudaFree; 1b memory of a pool stays in it; 1c
// empty_cache and a lower limit go by cudaFree; 1d eager memory reaches a pool by cudaFree alone;
// 1e memory is used again by its creation stream alone; 1f uncached memory goes by cudaFree; 1h the
// same as 1e, of small tensors that a graph's kernels read; 2 the allocator adds no order between
// streams; 3b a block that is freed while a recorded stream is captured is held back; 4 a stream is
// not touched after a free; 5 captures by other libraries stay whole; 14 the host waits in
// cudaMalloc, cudaFree and empty_cache alone; 16 captures that fail or never begin leave nothing
// behind; 17 a graph's pool that is ended and begun again in one capture uses its memory again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tests/torch/contract/legality.h"
#include "tests/torch/contract/program.h"
#include "tests/torch/contract/runner.h"

namespace weir::contract {

// Which guarantee is broken.
std::string row_of(const Program& program, const Failure& failure);

class Findings {
 public:
  // Shrinks the program if it is the first of its row and kind, or relies on less than the others.
  void add(const Program& program, const Failure& failure, const RunOptions& options);
  std::uint64_t count() const { return count_; }
  std::string table() const;

 private:
  struct Finding {
    std::uint64_t times = 0;
    Level least = Level::native;  // of the programs that failed
    Program shortest;
    Failure failure;
  };
  std::map<std::pair<std::string, Failure::Kind>, Finding> found_;
  std::uint64_t count_ = 0;
};

// For a person: the failure, the level that it needs, and the shrunk program.
std::string report(const Program& program, const Failure& failure, const RunOptions& options);

}  // namespace weir::contract
