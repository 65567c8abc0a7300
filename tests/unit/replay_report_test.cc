// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "replay/report.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ReplayFigures figures(Bytes reserved, Nanoseconds driver) {
  ReplayFigures figures;
  figures.peak_reserved = reserved;
  figures.trace_time = 1000_us;
  figures.driver_time = driver;
  figures.driver_calls[static_cast<int>(DeviceCall::create)] = 3;
  figures.driver_calls[static_cast<int>(DeviceCall::create_event)] = 50;
  figures.driver_calls[static_cast<int>(DeviceCall::synchronize)] = 2;
  figures.host_waits = 1;
  figures.races = 0;
  return figures;
}

ReplayOutcome outcome() {
  ReplayReport report;
  report.trace = "some.trace";
  report.device = "sim";
  report.options.passes = 2;
  report.peak_live = 100_MiB;
  report.trace_time = 1000_us;
  report.blocks = 7;
  report.streams = 1;
  report.passes = {figures(101_MiB, Nanoseconds{12345}), figures(102_MiB, 1_us)};
  report.all = figures(102_MiB, Nanoseconds{13345});
  report.all.trace_time = 2000_us;
  ReplayOutcome outcome;
  outcome.trace = report.trace;
  outcome.report = report;
  return outcome;
}

nlohmann::json json_of(const ReplayOutcome& one) {
  return nlohmann::json::parse(report_json({&one, 1}));
}

TEST(ReplayReport, JsonHasEveryFigureOfTheWholeAndOfEachPass) {
  const nlohmann::json json = json_of(outcome());
  EXPECT_EQ(json["trace"], "some.trace");
  EXPECT_EQ(json["device"], "sim");
  EXPECT_EQ(json["policy"], "balanced");
  EXPECT_EQ(json["limit_bytes"], nullptr);
  EXPECT_EQ(json["exit_code"], 0);
  EXPECT_EQ(json["trace_time_us"], 1000.0);
  EXPECT_EQ(json["ratio"], 1.02);
  EXPECT_EQ(json["driver_time_us"], 13.345);
  EXPECT_EQ(json["driver_time_percent"], 0.66725) << "of both passes";
  ASSERT_EQ(json["passes"].size(), 2u);
  EXPECT_EQ(json["passes"][0]["ratio"], 1.01);
  EXPECT_EQ(json["passes"][0]["driver_time_percent"], 1.2345);
  for (const nlohmann::json& level : {json, json["passes"][0], json["passes"][1]}) {
    for (const char* member : {"peak_live_bytes", "peak_reserved_bytes", "ratio", "trace_time_us",
                               "driver_time_us", "driver_calls", "host_waits", "races"}) {
      EXPECT_TRUE(level.contains(member)) << member;
    }
    EXPECT_EQ(level["peak_live_bytes"], (100_MiB).count);
    EXPECT_EQ(level["host_waits"], 1);
    EXPECT_EQ(level["races"], 0);
    const nlohmann::json& calls = level["driver_calls"];
    EXPECT_EQ(calls.size(), 10u);
    for (const char* call :
         {"map", "set_access", "unmap", "release", "record", "wait", "query", "record_context"}) {
      EXPECT_EQ(calls[call], 0) << call;
    }
    EXPECT_EQ(calls["create"], 3) << "of pages; events are not counted here";
    EXPECT_EQ(calls["sync"], 2);
  }
}

TEST(ReplayReport, EveryFailureHasItsExitCode) {
  ReplayOutcome one = outcome();
  const auto code_after = [&one](ReplayFailure::Kind kind) {
    one.report->failure = ReplayFailure{kind, 5, 1, "why", {}};
    return one.exit_code();
  };
  EXPECT_EQ(code_after(ReplayFailure::Kind::out_of_memory), ExitCode::answer_is_no);
  EXPECT_EQ(code_after(ReplayFailure::Kind::unsound), ExitCode::answer_is_no);
  EXPECT_EQ(code_after(ReplayFailure::Kind::device), ExitCode::cannot_run);
  EXPECT_EQ(one.complaint(), "some.trace:5: in pass 1: why");
  one.report->failure->held = {"stream 5 of the trace: 4.00 MiB"};
  EXPECT_THAT(one.complaint(), HasSubstr("stream 5 of the trace: 4.00 MiB"));
  EXPECT_EQ(json_of(one)["error"]["line"], 5);

  one.report->failure.reset();
  EXPECT_EQ(one.complaint(), "");
  one.report->all.races = 3;
  one.report->first_race = "the first of them";
  EXPECT_EQ(one.exit_code(), ExitCode::answer_is_no);
  EXPECT_THAT(one.complaint(), AllOf(HasSubstr("3 races"), HasSubstr("the first of them")));
  one.report.reset();
  one.error = Error(ErrorCode::unavailable, "no GPU");
  EXPECT_EQ(one.exit_code(), ExitCode::cannot_run);
}

TEST(ReplayReport, TextIsATableWithOneRowForEachPass) {
  const std::string text = report_text(*outcome().report);
  EXPECT_THAT(text, HasSubstr("some.trace on the simulated device: 7 blocks on 1 stream, 1.00 ms "
                              "of recorded time, policy balanced,\nno limit\n"));
  EXPECT_THAT(text, HasSubstr("     1    100 MiB        101 MiB  1.0100"));
  EXPECT_THAT(text, HasSubstr("     2    100 MiB        102 MiB  1.0200"));
  EXPECT_THAT(text, HasSubstr("   all    100 MiB        102 MiB  1.0200"));
  EXPECT_THAT(text, HasSubstr("at most 2.00 % more memory"));
  EXPECT_THAT(text, HasSubstr("waited 1 time,"));
}

TEST(ReplayReport, UncheckedRacesAreNotReportedAsNone) {
  ReplayOutcome one = outcome();
  one.report->all.races.reset();
  EXPECT_EQ(json_of(one)["races"], nullptr);
  EXPECT_THAT(report_text(*one.report), HasSubstr("nobody looked for races"));
  EXPECT_EQ(one.exit_code(), ExitCode::ok);
}

}  // namespace
}  // namespace weir
