// SPDX-License-Identifier: Apache-2.0
// The `weir` command itself: what it prints where, and what it returns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/unit/command_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

using test::Finished;
using test::kSmallTrace;
using test::WeirCommand;

TEST_F(WeirCommand, SaysItsVersion) {
  for (const char* arguments : {"--version", "version"}) {
    const Finished run = weir(arguments);
    EXPECT_EQ(run.code, 0) << arguments;
    EXPECT_EQ(run.out, "weir " WEIR_VERSION "\n") << arguments;
  }
}

TEST_F(WeirCommand, HelpNamesTheCommands) {
  for (const char* arguments : {"help", "--help", ""}) {
    const Finished run = weir(arguments);
    EXPECT_EQ(run.code, 0) << arguments;
    EXPECT_THAT(run.out, HasSubstr("replay")) << arguments;
  }
  EXPECT_THAT(weir("help replay").out, HasSubstr("Exit codes"));
}

TEST_F(WeirCommand, QuietSaysNothingWhenAllIsWell) {
  const Finished run = weir("replay --quiet " + write("small.trace", kSmallTrace));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out + run.err, "");
}

TEST_F(WeirCommand, JsonOfOneTraceIsAnObjectAndOfSeveralAList) {
  const std::string trace = write("small.trace", kSmallTrace);
  // The option before the trace must not take the trace for a file to write.
  const Finished one = weir("replay --json " + trace + " --repeat 3");
  EXPECT_EQ(one.code, 0);
  const auto object = nlohmann::json::parse(one.out);
  EXPECT_EQ(object["trace"], trace);
  EXPECT_EQ(object["peak_live_bytes"], 3145728 + 1024);
  EXPECT_EQ(object["passes"].size(), 3u);
  const Finished two = weir("replay " + trace + " " + trace + " --json");
  const auto list = nlohmann::json::parse(two.out);
  ASSERT_TRUE(list.is_array());
  EXPECT_EQ(list.size(), 2u);
}

TEST_F(WeirCommand, TwoRunsGiveTheSameBytes) {
  for (const char* name : {"1.json", "2.json"}) {
    const Finished run = weir("replay bench/traces/graph_two_stream.trace.gz --json=" + path(name));
    ASSERT_EQ(run.code, 0) << run.err;
  }
  EXPECT_GT(read("1.json").size(), 1000u);
  EXPECT_EQ(read("1.json"), read("2.json"));
}

TEST_F(WeirCommand, OneBadTraceDoesNotKeepTheOthersFromRunning) {
  const std::string bad = write("bad.trace", "a 0 1 0 0\nzzz\n");
  const Finished run = weir("replay --json " + bad + " " + write("small.trace", kSmallTrace));
  EXPECT_EQ(run.code, 3);
  const auto list = nlohmann::json::parse(run.out);
  EXPECT_EQ(list[0]["exit_code"], 3);
  EXPECT_THAT(list[0]["error"]["message"].get<std::string>(), HasSubstr("bad.trace:2: "));
  EXPECT_EQ(list[1]["exit_code"], 0);
}

TEST_F(WeirCommand, OutOfMemoryIsExitCode1) {
  const std::string trace = write("large.trace", "a 0 4194304 5 0\na 1 8388608 5 2\n");
  const Finished run = weir("replay --limit 8MiB " + trace);
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr(trace + ":2: in pass 1: "));
  EXPECT_EQ(weir("replay --limit 1.5x " + trace).code, 0);
  const Finished json = weir("replay --json --limit 0.5x " + trace);
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(nlohmann::json::parse(json.out)["error"]["kind"], "out_of_memory");
}

}  // namespace
}  // namespace weir
