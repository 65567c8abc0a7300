// SPDX-License-Identifier: Apache-2.0
// `weir comm bench` and `weir comm scenario` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
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
      "comm bench --device sim -b 64K -e 256K -f 2 -n 5 --ranks 3 --json " + path("bench.json"));
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.err, IsEmpty());
  EXPECT_THAT(finished.out, AllOf(HasSubstr("3 ranks"), HasSubstr("average bus bandwidth")));
  EXPECT_EQ(nlohmann::json::parse(read("bench.json"))["rows"].size(), 3u);
}

TEST_F(CommBench, PrintsRowsBeforeItsEnd) {
  // So many rows take minutes. Its reader goes after the first, and it ends with that.
  const std::string command =
      std::string(WEIR_TOOL) +
      " comm bench --device sim -b 4 -e 300K -i 4 -n 300 -c 0 | head -n 9 >" + path("rows");
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(read("rows"), HasSubstr("           4             1     float32     sum     -1"));
}

TEST_F(CommBench, EndsWhereNothingCanBePrinted) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string command =
      std::string(WEIR_TOOL) +
      " comm bench --device sim -b 4 -e 300K -i 4 -n 300 -c 0 >/dev/full 2>" + path("err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_THAT(read("err"), HasSubstr("standard output could not be written: No space left"));
}

TEST_F(CommBench, AFileThatCannotBeWrittenIsSaidBeforeAnythingIsMeasured) {
  // So many rows take minutes.
  const test::Finished finished =
      weir("comm bench --device sim -b 4 -e 300K -i 4 -n 300 -c 0 --json " + path("none/x.json"));
  EXPECT_EQ(finished.code, 3);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("none/x.json"), HasSubstr("can't be written")));
  EXPECT_THAT(finished.out, IsEmpty());
}

TEST_F(CommBench, TakesNcclTestsShortOptions) {
  const test::Finished finished = weir(
      "comm bench --device sim --operation reduce_scatter -b 8 -e 1K -i 504 -n 2 -c 0 -G 2 -m 2 -t "
      "2 --json -");
  EXPECT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json["rows"].size(), 3u);
  EXPECT_EQ(json["rows"][2]["count"], 124);  // a rank's part
  EXPECT_EQ(json["agg_iters"], 2);
  EXPECT_EQ(json["cudagraph"], 2);
}

TEST_F(CommBench, BadCommandLinesAreTwoAndSayWhatIsTaken) {
  const std::pair<const char*, const char*> bad[] = {{"-b 8X", "--minbytes '8X'"},
                                                     {"-b 2M -e 1M", "--maxbytes"},
                                                     {"--operation none", "--operation 'none'"},
                                                     {"--operation reduce", "nccl-tests"},
                                                     {"--ranks 0", "--ranks: '0'"},
                                                     {"-m 100000000", "1 to 10000"},
                                                     {"--json ''", "--json: the value is empty"},
                                                     {"--raw --compare", "--raw"}};
  for (const auto& [arguments, says] : bad) {
    const test::Finished finished = weir(std::string("comm bench --device sim ") + arguments);
    EXPECT_EQ(finished.code, 2) << arguments;
    EXPECT_THAT(finished.err, HasSubstr(says)) << arguments;
  }
}

TEST_F(CommBench, RegisteredBuffersAreSaidAndServeBothPaths) {
  const test::Finished finished =
      weir("comm bench --device sim -b 8 -e 8 -R 1 --compare --json " + path("bench.json"));
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("buffers of a registered pool"));
  EXPECT_EQ(nlohmann::json::parse(read("bench.json"))["local_register"], true);
}

TEST_F(CommBench, OverlapIsSaid) {
  const test::Finished finished =
      weir("comm bench --device sim -b 8 -e 8 --overlap --json " + path("bench.json"));
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("on the communication stream"));
  EXPECT_EQ(nlohmann::json::parse(read("bench.json"))["overlap"], true);
}

// Else each process of a job would make a world of its own, and say that all is well.
TEST_F(CommBench, OneRankOfALaunchDoesNotSimulateInSilence) {
  ::setenv("WEIR_RANK", "1", 1);
  const test::Finished finished = weir("comm bench -b 8 -e 8");
  ::unsetenv("WEIR_RANK");
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.err, HasSubstr("WEIR_WORLD_SIZE"));
}

TEST_F(CommBench, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_NE(weir("comm bench --device sim -b 8 -e 8 --json " + path("none/x.json")).code, 0);
}

TEST_F(CommBench, ScenariosSayWhetherTheCureHolds) {
  for (const char* const name : {"A", "D", "E"}) {
    const test::Finished finished = weir(std::string("comm scenario --device sim ") + name +
                                         " --json " + path("scenario.json"));
    EXPECT_EQ(finished.code, 0) << finished.out;
    EXPECT_THAT(finished.out, HasSubstr(std::string("Scenario ") + name + ": the cure holds"));
    EXPECT_EQ(nlohmann::json::parse(read("scenario.json"))["holds"], true);
  }
  EXPECT_EQ(weir("comm scenario --device sim A --json ''").code, 2);
  EXPECT_EQ(weir("comm scenario B").code, 2);
  EXPECT_EQ(weir("comm scenario").code, 2);
}

TEST_F(CommBench, OneRankIsOne) {
  EXPECT_THAT(weir("comm bench --device sim --ranks 1 -b 8 -e 8 -n 1").out,
              HasSubstr("# 1 rank: "));
}

TEST_F(CommBench, AScenarioMayBeNamedInSmallLetters) {
  const test::Finished finished = weir("comm scenario --device sim a");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("Scenario A: the cure holds"));
}

// Whichever it is: the exit status and the verdict say the same.
TEST_F(CommBench, TheExitStatusIsTheVerdict) {
  const test::Finished finished = weir("comm scenario C --device sim --json -");
  EXPECT_EQ(finished.code, nlohmann::json::parse(finished.out)["holds"] == true ? 0 : 1);
}

}  // namespace
}  // namespace weir
