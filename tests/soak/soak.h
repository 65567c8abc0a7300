// SPDX-License-Identifier: Apache-2.0
// A soak: workers of every kind at once on one allocator, for as long as asked, with samples of
// what the process and the device hold.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/soak/trend.h"
#include "weir/result.h"

namespace weir::soak {

// What a leak on purpose of the device's events shows in.
inline constexpr const char* kEventsAtRest = "events at rest";

struct Options {
  std::uint64_t seed = 1;
  double seconds = 10;
  unsigned threads = 2;              // that use eager blocks, beside the others
  double streams_per_minute = 2;     // that go and come on the allocator that lives long
  std::vector<std::string> without;  // workers that stay idle, by name
  bool fixed_addresses = false;      // of the allocator that lives long
  bool lends_scratch = false;        // likewise (GraphScratch::lend)
  bool simulated = true;
  int ordinal = 0;            // of the CUDA device
  bool leaks_events = false;  // which must be found
  bool omits_fences = false;  // of eager blocks: a program with this mistake must be caught
  // Ends the run early once it is not 0, which a handler of signals may make it; null: never.
  const std::atomic<int>* signal = nullptr;
};

struct Outcome {
  std::vector<std::string> complaints;  // none: every oracle agrees
  std::vector<Series> samples;
  std::uint64_t steps = 0, faults = 0, quiet = 0, rests = 0;
  std::size_t unjudged = 0;  // quantities with too few samples
  bool wrong_bytes = false;  // memory was given out wrongly, the device found
  double seconds = 0;
  int signal = 0;  // that ended the run early; 0: none
};

// Errors: unavailable (no such device); device.
Result<Outcome> run(const Options& options);

}  // namespace weir::soak
