// SPDX-License-Identifier: Apache-2.0
// Every driver call of whole replays of recorded traces is made to fail in turn; under sanitizers,
// which take ten times as long, some of each kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "replay/trace_reader.h"
#include "tests/property/program.h"
#include "tests/property/runner.h"

#if defined(__has_feature)
#define WEIR_HAS_FEATURE(x) __has_feature(x)
#else
#define WEIR_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    WEIR_HAS_FEATURE(address_sanitizer) || WEIR_HAS_FEATURE(thread_sanitizer)
#define WEIR_SANITIZED 1
#else
#define WEIR_SANITIZED 0
#endif

namespace weir::test {
namespace {

// Each block is written when it is allocated and read before it is freed; one that another stream
// used for longer is read there too, until the time that the trace says.
Program program_of(const Trace& trace) {
  Program program;
  program.streams = static_cast<std::uint32_t>(std::max<std::size_t>(trace.streams.size(), 2));
  program.memory = 141_GiB;
  std::int64_t time_us = trace.start_us;
  const auto add = [&](Operation::Kind kind, std::uint32_t block, std::uint32_t stream) {
    Operation operation;
    operation.kind = kind;
    operation.id = block;
    operation.stream = stream;
    operation.duration = 1_us;
    program.operations.push_back(operation);
    return &program.operations.back();
  };
  for (const TraceOp& op : trace.ops) {
    if (op.kind != TraceOp::Kind::allocate && op.kind != TraceOp::Kind::free) continue;
    add(Operation::Kind::advance, 0, 0)->duration = {(op.time_us - time_us) * 1000};
    time_us = op.time_us;
    const TraceBlock& block = trace.blocks[op.target];
    if (op.kind == TraceOp::Kind::allocate) {
      add(Operation::Kind::allocate, op.target, block.stream)->bytes = block.bytes;
      add(Operation::Kind::launch, op.target, block.stream)->write = true;
      continue;
    }
    add(Operation::Kind::launch, op.target, block.stream);
    if (block.used_until_us()) {
      const std::uint32_t other = (block.stream + 1) % program.streams;
      add(Operation::Kind::launch, op.target, other)->duration = {
          std::max<std::int64_t>(1, *block.used_until_us() - op.time_us) * 1000};
      add(Operation::Kind::fence, op.target, other);
    }
    add(Operation::Kind::deallocate, op.target, block.stream);
  }
  return program;
}

struct Case {
  const char* trace;
  bool tight;  // with hardly more memory than the program itself has at once
};

class ReplayFaults : public ::testing::TestWithParam<Case> {};

TEST_P(ReplayFaults, AtEveryCallAreSurvivedOrReported) {
  const std::string path = std::string("bench/traces/") + GetParam().trace + ".trace.gz";
  const Result<Trace> trace = read_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  Program program = program_of(*trace);
  if (GetParam().tight) program.limit = trace->peak_live * 103 / 100;

  const RunResult clean = run(program, {.check_every = 0, .fault = {}, .sink = nullptr});
  ASSERT_FALSE(clean.failure) << clean.failure->what;
  std::uint64_t faults = 0, errors = 0;
  for (int call = 0; call < kDeviceCalls; ++call) {
    const std::uint64_t calls = clean.calls[static_cast<std::size_t>(call)];
    const std::uint64_t stride = WEIR_SANITIZED ? 1 + calls / 20 : 1;
    for (std::uint64_t nth = 1; nth <= calls; nth += stride, ++faults) {
      const RunOptions options{
          .check_every = 0,
          .fault = RunOptions::Fault{static_cast<DeviceCall>(call), nth, ErrorCode::device},
          .sink = nullptr};
      const RunResult result = run(program, options);
      ASSERT_FALSE(result.failure)
          << name_of(static_cast<DeviceCall>(call)) << " number " << nth << " failed: operation "
          << result.failure->step << ": " << result.failure->what;
      errors += result.errors;
    }
  }
  EXPECT_GT(faults, 20u);
  EXPECT_GT(errors, 0u);  // else the faults never reached the heap
}

INSTANTIATE_TEST_SUITE_P(Traces, ReplayFaults,
                         ::testing::Values(Case{"dist_tp", false}, Case{"dist_tp", true},
                                           Case{"graph_two_stream", false},
                                           Case{"graph_two_stream", true}),
                         [](const auto& tested) {
                           return std::string(tested.param.trace) +
                                  (tested.param.tight ? "_tight" : "");
                         });

}  // namespace
}  // namespace weir::test
