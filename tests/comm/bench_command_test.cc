// SPDX-License-Identifier: Apache-2.0
// `weir comm bench` and `weir comm scenario` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/unit/command_fixture.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CommBench : public test::WeirCommand {};

TEST_F(CommBench, PrintsATableAndWritesJson) {
  const test::Finished finished = weir(
      "comm bench --device sim -b 64K -e 256K -f 2 -n 5 --ranks 3 --json=" + path("bench.json"));
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.err, IsEmpty());
  EXPECT_THAT(finished.out, AllOf(HasSubstr("3 ranks"), HasSubstr("host ns, Weir")));
  EXPECT_EQ(nlohmann::json::parse(read("bench.json"))["tables"][0]["rows"].size(), 3u);
}

TEST_F(CommBench, AFileThatCannotBeWrittenIsSaidBeforeAnythingIsMeasured) {
  const test::Finished finished =
      weir("comm bench --device sim -b 8 -e 8 --json=" + path("none/x.json"));
  EXPECT_EQ(finished.code, 3);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("none/x.json"), HasSubstr("can't be written")));
  EXPECT_THAT(finished.out, IsEmpty());
}

TEST_F(CommBench, BadCommandLinesAreTwoAndSayWhatIsTaken) {
  const std::pair<const char*, const char*> bad[] = {{"-b 8X", "--minbytes '8X'"},
                                                     {"-b 2M -e 1M", "--maxbytes"},
                                                     {"--ranks 0", "--ranks: '0'"},
                                                     {"-n 100000000", "1 to 10000"},
                                                     {"--json=", "--json: the value is empty"}};
  for (const auto& [arguments, says] : bad) {
    const test::Finished finished = weir(std::string("comm bench --device sim ") + arguments);
    EXPECT_EQ(finished.code, 2) << arguments;
    EXPECT_THAT(finished.err, HasSubstr(says)) << arguments;
  }
}

TEST_F(CommBench, SaysHowItMeasures) {
  const test::Finished finished =
      weir("comm bench --device sim -b 8 -e 8 --overlap --captured --compare");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out,
              HasSubstr("a round is the launch of a graph, on the communication stream"));
}

// Else each process of a job would make a world of its own, and say that all is well.
TEST_F(CommBench, OneRankOfALaunchDoesNotSimulateInSilence) {
  ::setenv("WEIR_RANK", "1", 1);
  const test::Finished finished = weir("comm bench -b 8 -e 8");
  ::unsetenv("WEIR_RANK");
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.err, HasSubstr("WEIR_WORLD_SIZE"));
}

TEST_F(CommBench, ScenariosSayWhetherTheCureHolds) {
  for (const std::string name : {"A", "D", "e"}) {
    const test::Finished finished =
        weir("comm scenario --device sim " + name + " --json=" + path("scenario.json"));
    EXPECT_EQ(finished.code, 0) << finished.out;
    EXPECT_THAT(finished.out, HasSubstr(": every aim holds"));
    EXPECT_EQ(nlohmann::json::parse(read("scenario.json"))["holds"], true);
  }
  EXPECT_EQ(weir("comm scenario --device sim A --json=").code, 2);
  EXPECT_EQ(weir("comm scenario B").code, 2);
  EXPECT_EQ(weir("comm scenario").code, 2);
}

// Whichever it is: the exit status and the verdict say the same.
TEST_F(CommBench, TheExitStatusIsTheVerdict) {
  const test::Finished finished = weir("comm scenario C --device sim --json=-");
  EXPECT_EQ(finished.code, nlohmann::json::parse(finished.out)["holds"] == true ? 0 : 1);
}

}  // namespace
}  // namespace weir
