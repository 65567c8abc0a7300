// SPDX-License-Identifier: Apache-2.0
// Allocators in shared libraries (suite_allocator.h).
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "suite/allocator.h"
#include "weir/result.h"

namespace weir::suite {

// Loads the library into this process, for good. Errors: invalid_input: it can't be loaded, has no
// weir_suite_allocator(), or one of another version, without a function, or with a name that tables
// can't show; unavailable: it says that it can't be used here. Each names the file.
Result<AllocatorKind> load_allocator(const std::string& path);

// Calls `work` in a process of its own, and returns the text that it sends. A process that sends
// nothing for `limit` is killed. Errors: unavailable: there is no such process.
using Send = std::function<void(const std::string& text)>;
struct ApartResult {
  std::string text;
  std::string ended;  // how the process ended, if it didn't return; else empty
  bool timed_out = false;
};
Result<ApartResult> run_apart(std::chrono::seconds limit,
                              const std::function<void(const Send& send)>& work);

}  // namespace weir::suite
