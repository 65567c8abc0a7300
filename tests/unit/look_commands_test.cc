// SPDX-License-Identifier: Apache-2.0
// `weir report`, `weir diff` and `weir top`: what they print where, and what they return.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/unit/command_fixture.h"
#include "weir/event.h"
#include "weir/recorder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using test::Finished;
using test::kSmallTrace;

class LookCommands : public test::WeirCommand {};

constexpr std::string_view kLarger =
    "a 0 6291456 0 0\n"
    "a 1 1000 1 10\n"
    "r 0 6291456 0 500\n"
    "f 0 6291456 0 500\n";

TEST_F(LookCommands, ReportPrintsTextOrJson) {
  const std::string trace = write("small.trace", kSmallTrace);
  const Finished text = weir("report " + trace);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.err, IsEmpty());
  EXPECT_THAT(text.out, AllOf(HasSubstr("peak of live"), HasSubstr("3.00 MiB"),
                              HasSubstr("page tails"), Not(HasSubstr("the moment asked for"))));
  const Finished json = weir("report --json --at 400us " + trace);
  EXPECT_EQ(json.code, 0);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["peak_live"]["live_bytes"], 3145728 + 1024);
  EXPECT_EQ(parsed["at"]["live_bytes"], 3145728 + 1024);
  EXPECT_EQ(parsed["end"]["live_bytes"], 1024);
}

TEST_F(LookCommands, AFileNamedJsonIsAFile) {
  const Finished report = weir("report --json " + write("snap.json", "{\"weir_snapshot\":1}"));
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_TRUE(nlohmann::json::accept(report.out));
}

TEST_F(LookCommands, WhatCannotBePrintedIsSaid) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string trace = write("small.trace", kSmallTrace);
  for (const char* command : {"report --json ", "report "}) {
    const int status = std::system(
        (std::string(WEIR_TOOL) + " " + command + trace + " >/dev/full 2>" + path("err")).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 3) << command;
    EXPECT_THAT(read("err"), HasSubstr("standard output could not be written")) << command;
  }
}

TEST_F(LookCommands, AProgramLargerThanAnyDeviceCanBeLookedAt) {
  const Finished report =
      weir("report --json " + write("large.trace", "a 0 900000000000 0 0\nr 0 900000000000 0 9\n"));
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_EQ(nlohmann::json::parse(report.out)["peak_live"]["live_bytes"], 900'000'000'000);
}

TEST_F(LookCommands, DiffPrintsWhatChanged) {
  const std::string small = write("small.trace", kSmallTrace),
                    larger = write("larger.trace", kLarger);
  const Finished text = weir("diff " + small + " " + larger);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("peak live"), HasSubstr("+3.00 MiB")));
  const Finished json = weir("diff --json " + small + " " + larger);
  EXPECT_EQ(nlohmann::json::parse(json.out)["peaks"][0]["change"], 3145728);
  const Finished same = weir("diff " + small + " " + small);
  EXPECT_EQ(same.code, 0);
  EXPECT_THAT(same.out, HasSubstr("Nothing that a report counts has changed."));
}

TEST_F(LookCommands, TopLooksOnceAtARecording) {
  auto recorder = Recorder::open(path("run.weir"), {.program = "train"});
  ASSERT_TRUE(recorder.ok()) << recorder.error().message();
  (*recorder)->on_start({});
  (*recorder)->on_event({.kind = EventKind::create, .page = {0}, .bytes = 2_MiB});
  ASSERT_TRUE((*recorder)->flush().ok());
  const Finished once = weir("top --once " + path("run.weir"));
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_THAT(once.out, AllOf(HasSubstr("train"), HasSubstr("2.00 MiB"), Not(HasSubstr("\x1b"))));
  const Finished twice = weir("top --count 2 --interval 0.05 " + path("run.weir"));
  EXPECT_THAT(twice.out, AllOf(HasSubstr("since the start"), HasSubstr("in the last 0.1 s")));
  // It is this process that records.
  const Finished process = weir("top --once " + std::to_string(::getpid()));
  EXPECT_EQ(process.code, 0) << process.err;
  EXPECT_THAT(process.out, HasSubstr("2.00 MiB"));
  ASSERT_TRUE((*recorder)->close().ok());
  EXPECT_EQ(weir("top --interval 0.05 " + path("run.weir")).code, 0);  // ends by itself
}

TEST_F(LookCommands, BadFilesAreNamedAndReturnThree) {
  const std::string bad = write("bad.trace", "a 0 1\n"), good = write("small.trace", kSmallTrace);
  for (const std::string& arguments :
       {"report " + bad, "diff " + good + " " + bad, "diff " + bad + " " + good, "top " + bad}) {
    const Finished run = weir(arguments);
    EXPECT_EQ(run.code, 3) << arguments;
    EXPECT_THAT(run.out, IsEmpty()) << arguments;
    EXPECT_THAT(run.err, HasSubstr("bad.trace")) << arguments;
  }
}

TEST_F(LookCommands, BadCommandLinesReturnTwo) {
  const std::string good = write("small.trace", kSmallTrace);
  for (const std::string& arguments :
       {std::string("report"), "diff " + good, std::string("top"), "report --at soon " + good,
        "report --top 0 " + good, "top --interval 0 " + good, "top --interval nan " + good,
        "top --count -1 " + good, "timeline --to csv -o '' " + good}) {
    EXPECT_EQ(weir(arguments).code, 2) << arguments;
  }
}

TEST_F(LookCommands, TopSaysThatThereIsNoSuchProcess) {
  const Finished run = weir("top 999999999");
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err, HasSubstr("there is no process 999999999"));
}

TEST_F(LookCommands, TopSaysHowAProcessIsMadeToRecord) {
  const Finished run = weir("top " + std::to_string(::getpid()));
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("is not recording"), HasSubstr("WEIR_RECORD")));
}

}  // namespace
}  // namespace weir
