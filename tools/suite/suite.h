// SPDX-License-Identifier: Apache-2.0
// Every program on every allocator.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "suite/allocator.h"
#include "suite/measure.h"
#include "suite/program.h"
#include "weir/result.h"

namespace weir::suite {

// One that the user chose: in this program, or in a library.
struct ChosenAllocator {
  std::string name, title;
  const AllocatorKind* built_in = nullptr;  // null: load `file` in a process of its own
  std::string file;
};

// `name`: of a built-in one, or a file. Of a file it looks at what the library says of itself.
// Errors: invalid_argument: no such name; as load_allocator(); invalid_input: loading it takes
// longer than `timeout`.
Result<ChosenAllocator> choose_allocator(const std::string& name, std::chrono::seconds timeout);
// Whether `name` names a file: it has a folder, or ends as libraries do.
bool is_library(std::string_view name);

struct SuiteOptions {
  bool host_time = true;
  std::chrono::seconds timeout{300};  // of a library, for each program
  // Called when a built-in allocator has been through a program.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

struct SuiteResult {
  std::vector<Program> programs;
  std::vector<ChosenAllocator> allocators;
  std::vector<Outcome> outcomes;  // of the first program, by allocator; then of the second; ...

  const Outcome& outcome(std::size_t program, std::size_t allocator) const {
    return outcomes[program * allocators.size() + allocator];
  }
  bool any_failed() const;
};

// A library that ends its process, or takes too long, fails the program that it was at, and those
// after it.
Result<SuiteResult> run_suite(std::vector<Program> programs,
                              std::vector<ChosenAllocator> allocators, const SuiteOptions& options);

// A table a program, and one of all.
std::string suite_text(const SuiteResult& result);
// docs/replay.md defines the members.
std::string suite_json(const SuiteResult& result);
std::string outcome_json(const Outcome& outcome);  // one of its "results", in a line

}  // namespace weir::suite
