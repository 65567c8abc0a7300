// SPDX-License-Identifier: Apache-2.0
// `weir comm` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"
#include "tests/unit/command_fixture.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CommBench : public test::WeirCommand {};

TEST_F(CommBench, PrintsATableAndWritesJson) {
  const test::Finished finished = weir(
      "comm bench --device sim -b 64K -e 256K -f 2 -n 5 --ranks 3 --overlap --captured "
      "--json=" +
      path("bench.json"));
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.err, IsEmpty());
  EXPECT_THAT(finished.out,
              AllOf(HasSubstr("3 ranks"), HasSubstr("host ns, Weir"),
                    HasSubstr("a round is the launch of a graph, on the communication stream")));
  EXPECT_EQ(nlohmann::json::parse(read("bench.json"))["tables"][0]["rows"].size(), 3u);
}

TEST_F(CommBench, AFileThatCannotBeWrittenIsSaidBeforeAnythingIsMeasured) {
  const test::Finished finished =
      weir("comm bench --device sim -b 64M --json=" + path("none/x.json"));
  EXPECT_EQ(finished.code, 3);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("none/x.json"), HasSubstr("can't be written")));
  EXPECT_THAT(finished.out, IsEmpty());
}

TEST_F(CommBench, BadCommandLinesAreTwoAndSayWhatIsTaken) {
  const std::pair<const char*, const char*> bad[] = {
      {"-b 8X", "--minbytes '8X'"},   {"-b 2M -e 1M", "--maxbytes"},
      {"-b 0", "--minbytes"},         {"-e 0", "--maxbytes"},
      {"-f 1", "--stepfactor"},       {"--ranks 0", "--ranks: '0'"},
      {"-n 100000000", "1 to 10000"}, {"--json=", "--json: the value is empty"}};
  for (const auto& [arguments, says] : bad) {
    const test::Finished finished = weir(std::string("comm bench --device sim ") + arguments);
    EXPECT_EQ(finished.code, 2) << arguments;
    EXPECT_THAT(finished.err, HasSubstr(says)) << arguments;
  }
}

// Else each process of a job would make a world of its own, and say that all is well.
TEST_F(CommBench, OneRankOfALaunchDoesNotSimulateInSilence) {
  ::setenv("WEIR_RANK", "1", 1);
  const test::Finished finished = weir("comm bench -b 8 -e 8");
  ::unsetenv("WEIR_RANK");
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.err, HasSubstr("WEIR_WORLD_SIZE"));
}

TEST_F(CommBench, ScenariosSayWhetherEveryAimHolds) {
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

// On a machine that was made up, in an empty environment.
class CheckCommand : public test::WeirCommand {
 protected:
  test::Finished run(const std::string& variables, const std::string& arguments) const {
    const std::string command = "env -i " + variables + " " WEIR_TOOL " comm check " + arguments +
                                " >" + path("out") + " 2>" + path("err") + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("out"), read("err")};
  }
  const test::TemporaryFolder tree_{};
};

TEST_F(CheckCommand, ASoundMachineIsZero) {
  tree_.write("sys/class/infiniband/mlx5_7/ports/1/state", "4: ACTIVE\n");
  const test::Finished finished = run("", "--root " + tree_.path());
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.err, IsEmpty());
  EXPECT_THAT(finished.out, AllOf(HasSubstr("mlx5_7 port 1: ACTIVE"), HasSubstr("Findings: 0")));
}

TEST_F(CheckCommand, WarningsAreZeroAndErrorsAreOne) {
  const std::string root = "--root " + tree_.path();
  EXPECT_EQ(run("NCCL_CUMEM_ENABLE=0", root).code, 0);
  const test::Finished finished = run("NCCL_COMM_BLOCKING=0", root);
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.out, HasSubstr("return before they are done"));
}

TEST_F(CheckCommand, JsonGoesToAFileOrToStandardOutput) {
  const std::string root = "--root " + tree_.path();
  const test::Finished printed = run("", root + " --json=-");
  EXPECT_EQ(printed.code, 0);
  EXPECT_EQ(nlohmann::json::parse(printed.out)["weir_comm_check"], 5);
  const test::Finished written = run("", root + " --json=" + path("check.json"));
  EXPECT_EQ(written.code, 0);
  EXPECT_THAT(written.out, HasSubstr("Findings"));
  EXPECT_EQ(read("check.json"), printed.out);
}

TEST_F(CheckCommand, ThisMachineCanBeLookedAt) {
  const test::Finished finished = run("", "");
  EXPECT_THAT(finished.code, ::testing::AnyOf(0, 1)) << finished.err;  // whatever it has
  EXPECT_THAT(finished.out, HasSubstr("RDMA ports: "));
}

TEST_F(CheckCommand, BadCommandLinesAreTwoAndFilesThree) {
  EXPECT_EQ(run("", "--root " + path("none")).code, 3);
  EXPECT_EQ(run("", "--root " + write("file", "x")).code, 3);
  EXPECT_EQ(run("", "--no-such-option").code, 2);
  EXPECT_EQ(run("", "--root " + tree_.path() + " --json=" + path("none/x.json")).code, 3);
  EXPECT_EQ(weir("comm").code, 2);
}

TEST_F(CheckCommand, ARootThatMayNotBeReadIsTold) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  std::filesystem::permissions(tree_.path(), std::filesystem::perms::none);
  const test::Finished finished = run("", "--root " + tree_.path());
  EXPECT_EQ(finished.code, 3);
  EXPECT_THAT(finished.err, HasSubstr("may not read"));
  std::filesystem::permissions(tree_.path(), std::filesystem::perms::owner_all);
}

}  // namespace
}  // namespace weir
