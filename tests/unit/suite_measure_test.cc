// SPDX-License-Identifier: Apache-2.0
// What the suite measures of an allocator, and what it finds wrong with one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "replay/replay.h"
#include "replay/trace_reader.h"
#include "suite/generated_programs.h"
#include "suite/measure.h"
#include "suite/trace_program.h"

namespace weir::suite {
namespace {

using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Program program_in(std::string_view trace) {
  const Result<Trace> parsed = parse_trace(trace, "test");
  EXPECT_TRUE(parsed.ok());
  return program_of(*parsed, "test");
}

// Blocks of 4, 3 and 3 MiB, of which the first two are free when one of 3 MiB comes.
constexpr std::string_view kFits =
    "a 0 4194304 0 0\n"
    "a 1 3145728 0 10\n"
    "a 2 3145728 0 20\n"
    "f 0 4194304 0 30\n"
    "f 1 3145728 0 40\n"
    "a 3 3145728 1 50\n"
    "f 2 3145728 0 60\n"
    "f 3 3145728 1 70\n";

TEST(SuiteMeasure, BestFitTakesTheSmallestRangeThatFits) {
  const Outcome outcome = measure_memory(best_fit_kind(), program_in(kFits));
  EXPECT_THAT(outcome.failure, IsEmpty());
  // Segments of 4, 4 and 4 MiB; the last request fits into what the second has.
  EXPECT_EQ(Bytes{outcome.peak_held}, 12_MiB);
  EXPECT_EQ(outcome.driver_calls, 3u);
  EXPECT_EQ(outcome.waits, 1u) << "another stream gets the range";
}

TEST(SuiteMeasure, BestFitJoinsNeighboursAndSplitsThem) {
  const Outcome outcome = measure_memory(best_fit_kind(), program_in("a 0 1048576 0 0\n"
                                                                     "a 1 1048576 0 1\n"
                                                                     "f 0 1048576 0 2\n"
                                                                     "f 1 1048576 0 3\n"
                                                                     "a 2 2097152 0 4\n"
                                                                     "f 2 2097152 0 5\n"));
  EXPECT_EQ(Bytes{outcome.peak_held}, 2_MiB) << "one segment serves all";
  EXPECT_EQ(outcome.driver_calls, 1u);
  EXPECT_EQ(outcome.waits, 0u);
}

TEST(SuiteMeasure, TheDriverAloneHoldsWholePages) {
  const Outcome outcome = measure_memory(driver_alone_kind(), program_in(kFits));
  EXPECT_EQ(Bytes{outcome.peak_held}, 12_MiB);
  EXPECT_EQ(outcome.driver_calls, 8u);
  EXPECT_EQ(outcome.waits, 4u);
  EXPECT_DOUBLE_EQ(outcome.ratio, 1.2);
}

TEST(SuiteMeasure, TheRatioOverTimeWeighsEachMomentByItsLength) {
  // 2 MiB held for 1 MiB that is live 90 us, and 4 MiB held for 3 MiB that are live 10 us.
  const Outcome outcome = measure_memory(driver_alone_kind(), program_in("a 0 1048576 0 0\n"
                                                                         "a 1 2097152 0 90\n"
                                                                         "f 0 1048576 0 100\n"
                                                                         "f 1 2097152 0 100\n"));
  EXPECT_DOUBLE_EQ(outcome.weighted_ratio, (90.0 * 2 + 10 * 4) / (90.0 * 1 + 10 * 3));
  EXPECT_DOUBLE_EQ(outcome.ratio, 4.0 / 3);
}

TEST(SuiteMeasure, WeirHoldsWhatItsReplayHolds) {
  for (const char* const name : {"generate", "serve_multistream7", "unet_like"}) {
    const Result<Trace> trace = read_trace("bench/traces/" + std::string(name) + ".trace.gz");
    ASSERT_TRUE(trace.ok());
    const std::unique_ptr<ReplayDevice> device = make_sim_replay_device();
    const Result<ReplayReport> report = replay(*trace, *device, {});
    ASSERT_TRUE(report.ok());
    const Outcome outcome = measure_memory(weir_heap_kind(), program_of(*trace, name));
    EXPECT_THAT(outcome.failure, IsEmpty());
    EXPECT_EQ(outcome.peak_held, report->all.peak_reserved.count) << name;
    EXPECT_EQ(program_of(*trace, name).needs.peak_live, trace->peak_live) << name;
  }
}

TEST(SuiteMeasure, NothingHoldsLessThanTheBoundAndFiguresRepeat) {
  for (const GeneratedFamily& family : generated_families()) {
    const Program program = generate(family, 5, {.phases = 3, .pairs = 256});
    for (const AllocatorKind& kind : built_in_allocators()) {
      SCOPED_TRACE(program.name + " on " + kind.name);
      const Outcome one = measure_memory(kind, program), two = measure_memory(kind, program);
      EXPECT_THAT(one.failure, IsEmpty());
      EXPECT_GE(one.peak_held, program.needs.lower_bound.count);
      EXPECT_EQ(one.peak_held, two.peak_held);
      EXPECT_EQ(one.weighted_ratio, two.weighted_ratio);
      EXPECT_EQ(one.driver_calls, two.driver_calls);
      EXPECT_EQ(one.waits, two.waits);
    }
  }
}

// A third of what driver-alone holds would do for a program whose pools never go.
TEST(SuiteMeasure, WeirsPoolsGiveTheirMemoryBack) {
  const Program program =
      generate(*std::ranges::find(generated_families(), "pools", &GeneratedFamily::name), 1);
  const Outcome outcome = measure_memory(weir_heap_kind(), program);
  EXPECT_LE(outcome.ratio, 1.25);
}

// What a call costs does not grow with the streams that the program has.
TEST(SuiteMeasure, TwentyThousandStreamsTakeSeconds) {
  constexpr std::uint32_t kStreams = 20'000;
  Program program;
  program.streams = program.blocks = kStreams;
  for (const ProgramCall::Kind kind : {ProgramCall::Kind::allocate, ProgramCall::Kind::free}) {
    for (std::uint32_t i = 0; i < kStreams; ++i) {
      program.calls.push_back(
          {.kind = kind, .stream = i, .block = i, .bytes = 4096, .time_us = program.end_us++});
    }
  }
  add_needs(program);
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = measure_memory(weir_heap_kind(Bytes{std::uint64_t{1} << 60}), program);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_GE(outcome.peak_held, kStreams * 4096);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace weir::suite
