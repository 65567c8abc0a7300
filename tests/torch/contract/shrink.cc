// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/shrink.h"

#include <algorithm>
#include <cstddef>
#include <sstream>

#include "tests/torch/contract/legality.h"

namespace weir::contract {
namespace {

bool still_fails(const Program& program, Failure::Kind failure, const RunOptions& options) {
  if (first_illegal_step(program)) return false;
  const Outcome weir = run_on_weir(program, options);
  return weir.failure && weir.failure->kind == failure && !run_on_native(program).failure;
}

}  // namespace

// Ever smaller runs of steps (Zeller's ddmin, greedy), until no single step can go.
Program shrink(Program program, Failure::Kind failure, const RunOptions& options) {
  bool shorter_yet = true;
  while (shorter_yet) {
    shorter_yet = false;
    for (std::size_t width = std::max<std::size_t>(program.steps.size() / 2, 1); width > 0;
         width /= 2) {
      for (std::size_t at = 0; at < program.steps.size();) {
        Program shorter = program;
        const auto begin = shorter.steps.begin() + static_cast<std::ptrdiff_t>(at);
        const std::size_t count = std::min(width, program.steps.size() - at);
        shorter.steps.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
        if (still_fails(shorter, failure, options)) {
          program = std::move(shorter);
          shorter_yet = true;
        } else {
          at += width;
        }
      }
    }
  }
  return program;
}

std::string report(const Program& program, const Failure& failure, const RunOptions& options) {
  const Program shortest = shrink(program, failure.kind, options);
  const Failure again = run_on_weir(shortest, options).failure.value_or(failure);
  std::ostringstream text;
  text << name_of(program) << ": " << name_of(failure.kind) << " after step " << failure.step
       << "\n"
       << failure.what << "\nThe shortest program found that fails, after its step " << again.step
       << ", " << describe(shortest) << again.what << "\n";
  return text.str();
}

}  // namespace weir::contract
