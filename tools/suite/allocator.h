// SPDX-License-Identifier: Apache-2.0
// An allocator as the suite runs it, and the ones that `weir bench` has in itself. To add one,
// write a file like best_fit.cc and name it in registry.cc; or a library (suite_allocator.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "suite/program.h"
#include "weir/result.h"

namespace weir::suite {

struct AllocatorFigures {
  std::uint64_t held = 0;       // bytes of the driver's memory, now
  std::uint64_t most_held = 0;  // since it was made; 0: it keeps no such figure
  std::optional<std::uint64_t> driver_calls, waits;  // so far; none: it can't say
};

// One allocator that serves one program. Used by one thread. A block is allocated, used and freed
// with the program's calls for it.
class SuiteAllocator {
 public:
  virtual ~SuiteAllocator() = default;

  virtual Result<void*> allocate(const ProgramCall& call) = 0;
  virtual Status use(void* block, const ProgramCall& call) = 0;
  virtual Status free(void* block, const ProgramCall& call) = 0;
  virtual Status trim() { return {}; }
  // The program does something else until then. Not called where host time is measured.
  virtual void advance_to(std::int64_t /*time_us*/) {}
  // Every block is freed. Errors: what the allocator finds wrong with itself.
  virtual Status finish() { return {}; }
  virtual AllocatorFigures figures() const = 0;
};

// What a run is to measure. Weir's device has a clock and does the program's work for the first,
// and does nothing for the second.
enum class Purpose : std::uint8_t { memory, host_time };

struct AllocatorKind {
  std::string name;
  std::string title;          // what it is, in words
  bool has_host_time = true;  // false: what costs time in it is only modelled
  std::function<Result<std::unique_ptr<SuiteAllocator>>(const Program&, Purpose)> make;
};

AllocatorKind weir_heap_kind(Bytes limit = {});  // on memory, as it is measured; zero: none
AllocatorKind best_fit_kind();
AllocatorKind driver_alone_kind();

// All of them.
std::span<const AllocatorKind> built_in_allocators();

}  // namespace weir::suite
