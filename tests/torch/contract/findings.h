// What the failures of many programs have in common: a table of distinct ones.
//
// The rows are those of docs/pytorch.md's list of the native allocator's guarantees, as far as the
// failure tells.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/torch/contract/legality.h"
#include "tests/torch/contract/program.h"
#include "tests/torch/contract/runner.h"

namespace weir::contract {

// Which guarantee is broken.
std::string row_of(const Program& program, const Failure& failure);

class Findings {
 public:
  // Shrinks the program if it is the first of its row and kind.
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
