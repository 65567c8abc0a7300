// SPDX-License-Identifier: Apache-2.0
// Runs a program on a device heap over the simulated device, keeping to the contract (a block is
// used on another stream only in order, and fenced before it is given back), and asks the oracle
// after every step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/property/forgetful_device.h"
#include "tests/property/program.h"
#include "weir/device.h"
#include "weir/event.h"

namespace weir::test {

struct RunOptions {
  // Ask the oracle after every so many steps (and at the end); 0: at the end only.
  std::uint32_t check_every = 1;
  // Make the `nth` call of `kind` fail, once.
  struct Fault {
    DeviceCall kind;
    std::uint64_t nth;
    ErrorCode code = ErrorCode::device;
  };
  std::optional<Fault> fault;
  // Also gets every event of the heap.
  EventSink* sink = nullptr;
  // Leave out one call of the heap's that orders work, and say that it was made.
  std::optional<Omission> omission = {};
  // All work is over whenever the limit changes: what may go then is certain.
  bool idle_at_limits = false;
};

struct RunResult {
  // What went wrong first, and after which operation; none: all held.
  struct Failure {
    std::size_t step = 0;
    std::string what;
  };
  std::optional<Failure> failure;

  std::uint64_t allocations = 0;
  std::uint64_t out_of_memory = 0;
  std::uint64_t errors = 0;  // of the device, reported by the heap
  std::uint64_t stream_waits = 0, host_waits = 0;
  std::uint64_t sleeps = 0;
  bool omitted = false;  // RunOptions::omission came about
  // Driver calls made before the heap was destroyed.
  std::array<std::uint64_t, kDeviceCalls> calls{};
};

RunResult run(const Program& program, const RunOptions& options = {});

// The shortest program found that still fails: cut after the failing step, then without whatever
// operations can be left out. Runs `fails` at most `budget` times.
using Fails = std::function<std::optional<RunResult::Failure>(const Program&)>;
Program shrink(Program program, const Fails& fails, int budget = 400);

// For a test to print: what failed, the seed, and the shortest program that fails.
std::string report(const Program& program, const RunOptions& options,
                   const RunResult::Failure& failure);

}  // namespace weir::test
