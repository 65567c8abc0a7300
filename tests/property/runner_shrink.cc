// SPDX-License-Identifier: Apache-2.0
// Of a program that fails: the shortest one that still does, and what a test prints of both.
#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <utility>

#include "tests/property/runner.h"

namespace weir::test {

Program shrink(Program program, const Fails& fails, int budget) {
  if (const auto failure = fails(program)) {
    program.operations.resize(std::min(program.operations.size(), failure->step + 1));
  }
  // Leave out ever smaller runs of operations (Zeller's ddmin, greedy).
  for (std::size_t width = program.operations.size() / 2; width > 0 && budget > 0; width /= 2) {
    for (std::size_t at = 0; at < program.operations.size() && budget > 0;) {
      Program shorter = program;
      const auto begin = shorter.operations.begin() + static_cast<std::ptrdiff_t>(at);
      const std::size_t count = std::min(width, program.operations.size() - at);
      shorter.operations.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
      --budget;
      if (fails(shorter)) {
        program = std::move(shorter);
      } else {
        at += width;
      }
    }
  }
  return program;
}

std::string report(const Program& program, const RunOptions& options,
                   const RunResult::Failure& failure) {
  const Program shortest =
      shrink(program, [&](const Program& shorter) { return run(shorter, options).failure; });
  const auto again = run(shortest, options).failure;
  std::ostringstream text;
  text << "seed " << program.seed << ", after operation " << failure.step << ":\n"
       << failure.what << "\nThe shortest program found that fails, " << describe(shortest);
  if (again) text << "fails after operation " << again->step << ":\n" << again->what;
  return text.str();
}

}  // namespace weir::test
