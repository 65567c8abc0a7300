// SPDX-License-Identifier: Apache-2.0
#include "replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "replay/trace_reader.h"

namespace weir {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

Trace parsed(std::string_view text) {
  Result<Trace> trace = parse_trace(text, "t.trace");
  EXPECT_TRUE(trace.ok()) << trace.error().message();
  return *std::move(trace);
}

ReplayReport replayed(const Trace& trace, const ReplayOptions& options = {}) {
  const std::unique_ptr<ReplayDevice> device = make_sim_replay_device();
  Result<ReplayReport> report = replay(trace, *device, options);
  EXPECT_TRUE(report.ok());
  return *std::move(report);
}

std::string failure(const ReplayReport& report) {
  return report.failure ? report.failure->message : "";
}

TEST(Replay, MeasuresWhatTheProgramAndTheHeapHeld) {
  const ReplayReport report =
      replayed(parsed("a 0 3145728 0 1000\n"
                      "a 1 1000 1 1500\n"
                      "r 0 3145728 0 2000\n"
                      "f 0 3145728 0 2000\n"));
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.peak_live, 3_MiB + 1_KiB);
  EXPECT_EQ(report.trace_time, 1000_us);
  EXPECT_EQ(report.blocks, 2u);
  EXPECT_EQ(report.streams, 2u);
  ASSERT_THAT(report.passes, SizeIs(1));
  EXPECT_GE(report.all.peak_reserved, report.peak_live);
  EXPECT_GT(report.ratio(report.all), 1.0);
  EXPECT_GT(report.all.calls(DeviceCall::create), 0u);
  EXPECT_GT(report.all.driver_time, 0_ns);
  EXPECT_EQ(report.all.races, 0u);
  EXPECT_EQ(report.all.host_waits, 0u);
  EXPECT_GT(report.all.reserved, 0_B);
  EXPECT_EQ(report.driver_reserved, report.all.reserved);
}

TEST(Replay, PassesAddUpToTheWhole) {
  const ReplayReport report =
      replayed(parsed("a 0 6291456 0 0\na 1 700 0 5\nr 1 700 0 50\n"), {.passes = 4});
  EXPECT_EQ(failure(report), "");
  ASSERT_THAT(report.passes, SizeIs(4));
  Nanoseconds driver;
  std::uint64_t calls = 0;
  Bytes reserved;
  for (const ReplayFigures& pass : report.passes) {
    driver += pass.driver_time;
    calls += std::accumulate(pass.driver_calls.begin(), pass.driver_calls.end(), std::uint64_t{0});
    reserved = std::max(reserved, pass.peak_reserved);
    EXPECT_EQ(pass.trace_time, report.trace_time);
  }
  EXPECT_EQ(driver, report.all.driver_time);
  EXPECT_EQ(calls, std::accumulate(report.all.driver_calls.begin(), report.all.driver_calls.end(),
                                   std::uint64_t{0}));
  EXPECT_EQ(reserved, report.all.peak_reserved);
  EXPECT_GT(report.passes[0].calls(DeviceCall::create), 0u);
  EXPECT_EQ(report.passes[1].calls(DeviceCall::create), 0u) << "the memory is there already";
}

TEST(Replay, BlocksThatTheProgramKeepsAreFreedAtTheEndOfEachPass) {
  const Trace trace = parsed("a 0 4194304 0 0\na 1 4194304 0 1\n");
  const ReplayReport report = replayed(trace, {.limit = 8_MiB, .passes = 3});
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.all.peak_reserved, 8_MiB);
}

// Block 0 is used past its free, and its memory is wanted meanwhile.
constexpr const char* kLateUse =
    "a 0 4194304 0 0\nr 0 4194304 0 100\na 1 4194304 0 110\n"
    "f 0 4194304 0 5000\nr 1 4194304 0 6000\nf 1 4194304 0 6000\n";
constexpr const char* kRecordedFence =
    "a 0 4194304 0 0\nu 0 1 10\nr 0 4194304 0 11\nf 0 4194304 0 11\na 1 4194304 0 11\n"
    "r 1 4194304 0 40\nf 1 4194304 0 40\n";
constexpr const char* kCapturedLateUse =
    "m capture\na 0 4194304 5 0\nr 0 4194304 5 10\na 1 4194304 5 20\n"
    "r 1 4194304 5 30\nf 1 4194304 5 30\nf 0 4194304 5 100\na 2 512 6 110\n";

TEST(Replay, UsesPastAFreeAreFencedAndRaceWhereTheFencesAreLeftOut) {
  struct Case {
    const char* text;
    ReplayOptions options;
  } cases[] = {// No room to grow: the memory must be taken over, and only the fence orders that.
               {kLateUse, {.limit = 4_MiB, .policy = ReusePolicy::wait}},
               {kLateUse, {.limit = 4_MiB, .policy = ReusePolicy::balanced}},
               {kRecordedFence, {.limit = 4_MiB}},
               {kCapturedLateUse, {.policy = ReusePolicy::wait, .graph_orders = 50}}};
  for (Case& each : cases) {
    SCOPED_TRACE(each.text);
    const bool captured = each.options.graph_orders > 0;
    const ReplayReport fenced = replayed(parsed(each.text), each.options);
    EXPECT_EQ(failure(fenced), "");
    EXPECT_EQ(fenced.all.fences, 1u);
    EXPECT_EQ(fenced.all.races, 0u) << fenced.first_race;
    EXPECT_GT(fenced.all.stream_waits, 0u);
    EXPECT_EQ(fenced.graphs, captured ? 1u : 0u);
    EXPECT_EQ(fenced.late_uses, each.text == kRecordedFence ? 0u : 1u);
    each.options.leave_out_fences = true;
    const ReplayReport unfenced = replayed(parsed(each.text), each.options);
    EXPECT_EQ(failure(unfenced), "");
    // In a capture by the edges, and in some order.
    EXPECT_GT(unfenced.all.races.value_or(0), captured ? 1u : 0u);
    EXPECT_THAT(unfenced.first_race, Not(IsEmpty()));
  }
}

TEST(Replay, EmptyBlocksAreFine) {
  const ReplayReport report = replayed(parsed("a 0 0 0 0\nu 0 1 1\nr 0 0 0 2\na 1 0 0 3\n"),
                                       {.passes = 2, .validate = true});
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.peak_live, 0_B);
  EXPECT_EQ(report.ratio(report.all), 1.0);
}

TEST(Replay, RunningOutOfMemorySaysWhereAndWhatHoldsIt) {
  const ReplayReport report = replayed(
      parsed("a 0 4194304 5 0\na 1 2097152 6 1\na 2 8388608 5 2\n"), {.limit = 8_MiB, .passes = 2});
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_EQ(report.failure->kind, ReplayFailure::Kind::out_of_memory);
  EXPECT_EQ(report.failure->line, 3u);
  EXPECT_EQ(report.failure->pass, 1u);
  EXPECT_THAT(report.failure->held,
              Contains(MatchesRegex(
                  "stream 5 of the trace \\([0-9]+ on the device\\): 4.00 MiB in 1 block")));
  EXPECT_THAT(report.failure->held, Contains(HasSubstr("stream 6 of the trace")));
  EXPECT_THAT(report.failure->held, Contains("1 block of 4.00 MiB: 4.00 MiB"));
}

TEST(Replay, ValidatedReplayMeasuresTheSame) {
  ReplayReport plain = replayed(parsed(kLateUse), {.passes = 2});
  ReplayReport validated = replayed(parsed(kLateUse), {.passes = 2, .validate = true});
  EXPECT_EQ(failure(validated), "");
  EXPECT_EQ(plain.all.driver_calls, validated.all.driver_calls);
}

}  // namespace
}  // namespace weir
