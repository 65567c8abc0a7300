// Which settings are in force, and what is wrong with each alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/check/rules.h"
#include "comm/check/variables.h"
#include "tests/comm/check_machines.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using check::DeviceList;
using test::MachineTree;
using test::settings_of;

std::string wrong(std::string_view name, const std::string& value) {
  const check::Variable* variable = check::variable_named(name);
  return variable == nullptr ? "no such variable" : check::wrong_with(*variable, value);
}

TEST(CheckSettings, TheEnvironmentWinsThenTheUsersFileThenTheSystems) {
  const MachineTree tree;
  tree.write("/etc/nccl.conf", "NCCL_DEBUG=WARN\nNCCL_NET=Socket\nNCCL_ALGO=Ring\n");
  tree.write("/folks/me/.nccl.conf", "# mine\nNCCL_DEBUG=INFO\nNCCL_NET=IB\n");
  const Settings settings =
      read_settings(tree.root(), {{"NCCL_DEBUG", "TRACE"}, {"PATH", "x"}}, "/folks/me");
  ASSERT_THAT(settings.list, SizeIs(3));
  EXPECT_EQ(settings.list[0].name, "NCCL_ALGO");
  EXPECT_EQ(settings.list[0].source, "/etc/nccl.conf");
  EXPECT_EQ(settings.list[1].value, "TRACE");
  EXPECT_EQ(settings.list[1].source, "environment");
  EXPECT_EQ(settings.list[2].value, "IB");
  EXPECT_EQ(settings.list[2].source, "/folks/me/.nccl.conf");
  EXPECT_THAT(settings.files, ElementsAre("/folks/me/.nccl.conf", "/etc/nccl.conf"));
  EXPECT_THAT(settings.odd_lines, IsEmpty());
}

TEST(CheckSettings, WhatSaysWhichRankThisIsIsToldToo) {
  const MachineTree tree;
  const Settings settings = read_settings(
      tree.root(), {{"WEIR_RANK", "0"}, {"WEIR_MEET", "a:29500"}, {"WORLD_SIZE", "2"}}, "");
  ASSERT_THAT(settings.list, SizeIs(3));
  EXPECT_EQ(*settings.find("WEIR_RANK"), "0");
  EXPECT_EQ(*settings.find("WEIR_MEET"), "a:29500");
  EXPECT_EQ(*settings.find("WORLD_SIZE"), "2");
}

TEST(CheckSettings, AFileThatIsNamedStandsForTheUsers) {
  const MachineTree tree;
  tree.write("/job.conf", "NCCL_DEBUG=WARN");
  tree.write("/folks/me/.nccl.conf", "NCCL_NET=IB\n");
  const Settings settings =
      read_settings(tree.root(), {{"NCCL_CONF_FILE", "/job.conf"}}, "/folks/me");
  EXPECT_THAT(settings.files, ElementsAre("/job.conf"));
  EXPECT_EQ(settings.find("NCCL_NET"), nullptr);
  EXPECT_EQ(*settings.find("NCCL_DEBUG"), "WARN");
}

TEST(CheckSettings, ANamedFileThatIsNotThereIsTold) {
  const MachineTree tree;
  for (const char* path : {"/none.conf", "none.conf"}) {
    const Settings settings = read_settings(tree.root(), {{"NCCL_CONF_FILE", path}}, "");
    ASSERT_THAT(settings.unread, SizeIs(1)) << path;
    EXPECT_EQ(settings.unread[0].path, path);
  }
}

TEST(CheckSettings, LinesThatNcclDoesNotUnderstandAreTold) {
  const MachineTree tree;
  const std::string text =
      "# a comment\n\nNCCL_NET IB\nNCCL_DEBUG = INFO\n=x\nexport NCCL_ALGO=Ring\nNCCL_PROTO= LL\n" +
      std::string("NCCL_TOPO_FILE=") + std::string(2000, 'x') + "\nNCCL_BUFFSIZE=1\n";
  tree.write("/etc/nccl.conf", text);
  const Settings settings = read_settings(tree.root(), {}, "");
  std::vector<int> lines;
  for (const OddLine& line : settings.odd_lines) lines.push_back(line.line);
  EXPECT_THAT(lines, ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_EQ(settings.find("NCCL_DEBUG"), nullptr);  // "NCCL_DEBUG " is another
  EXPECT_EQ(settings.find("NCCL_ALGO"), nullptr);
  EXPECT_EQ(*settings.find("NCCL_PROTO"), " LL");
  EXPECT_EQ(settings.find("NCCL_TOPO_FILE")->size(), 1023u);
  EXPECT_EQ(*settings.find("NCCL_BUFFSIZE"), "1");
}

TEST(CheckSettings, NumbersAreAsNcclReadsThem) {
  const Settings settings = settings_of({{"NCCL_MAX_CTAS", "0x10"},
                                         {"NCCL_MIN_CTAS", "true"},
                                         {"NCCL_NTHREADS", "12abc"},
                                         {"NCCL_BUFFSIZE", ""}});
  EXPECT_EQ(settings.number("NCCL_MAX_CTAS"), 16);
  EXPECT_EQ(settings.number("NCCL_MIN_CTAS"), 0);
  EXPECT_EQ(settings.number("NCCL_NTHREADS"), 12);
  EXPECT_FALSE(settings.number("NCCL_BUFFSIZE"));
  EXPECT_FALSE(settings.number("NCCL_IB_TC"));
}

TEST(CheckSettings, TheEnvironmentIsSplitAtTheFirstEqualsSign) {
  const char* const entries[] = {"A=b=c", "NCCL_X=", "odd", nullptr};
  EXPECT_THAT(environment_of(entries),
              ElementsAre(testing::Pair("A", "b=c"), testing::Pair("NCCL_X", "")));
  EXPECT_THAT(environment_of(nullptr), IsEmpty());
}

TEST(CheckVariables, AreInOrderAndComplete) {
  const auto table = check::variables();
  EXPECT_GE(table.size(), 60u);
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_TRUE(table[i].name.starts_with("NCCL_")) << table[i].name;
    EXPECT_FALSE(table[i].meaning.empty() || table[i].fallback.empty()) << table[i].name;
    const bool listed = table[i].kind == check::ValueKind::choice ||
                        table[i].kind == check::ValueKind::words ||
                        table[i].kind == check::ValueKind::algorithms;
    EXPECT_EQ(listed, !table[i].choices.empty()) << table[i].name;
    for (const std::string_view other : check::other_names()) EXPECT_NE(other, table[i].name);
    if (i > 0) {
      EXPECT_NE(table[i - 1].name, table[i].name);
    }
  }
}

TEST(CheckVariables, TypingErrorsAreNearToWhatWasMeant) {
  EXPECT_EQ(check::near_to("NCCL_DBUG"), "NCCL_DEBUG");
  EXPECT_EQ(check::near_to("NCCL_SOCKET_IFNAMES"), "NCCL_SOCKET_IFNAME");
  EXPECT_EQ(check::near_to("NCCL_BI_HCA"), "NCCL_IB_HCA");  // two letters swapped: one error
  EXPECT_EQ(check::near_to("NCCL_P2P_DISABEL"), "NCCL_P2P_DISABLE");
  EXPECT_EQ(check::near_to("NCCL_SOMETHING_ELSE"), "");
  EXPECT_EQ(check::near_to("NCCL_" + std::string(10000, 'X')), "");
}

TEST(CheckVariables, FlagsAndNumbersAreWholeNumbers) {
  for (const char* good : {"0", "1", "0x1", ""}) EXPECT_EQ(wrong("NCCL_P2P_DISABLE", good), "");
  EXPECT_THAT(wrong("NCCL_P2P_DISABLE", "true"), HasSubstr("reads it as 0"));
  EXPECT_THAT(wrong("NCCL_P2P_DISABLE", "2"), HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(wrong("NCCL_BUFFSIZE", "4M"), HasSubstr("reads it as 4"));
  EXPECT_THAT(wrong("NCCL_BUFFSIZE", "99999999999999999999"), HasSubstr("too large"));
  EXPECT_EQ(wrong("NCCL_IB_GID_INDEX", "-1"), "");
}

TEST(CheckVariables, LevelsAreWordsOrDigits) {
  for (const char* good : {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "3"}) {
    EXPECT_EQ(wrong("NCCL_P2P_LEVEL", good), "") << good;
  }
  for (const char* bad : {"sys", "PIXX", "33", "-1"}) {
    EXPECT_THAT(wrong("NCCL_NET_GDR_LEVEL", bad), HasSubstr("no level")) << bad;
  }
}

TEST(CheckVariables, WordsAreOfTheirLists) {
  for (const char* good : {"info", "WARN", "VERSION", "Trace"}) {
    EXPECT_EQ(wrong("NCCL_DEBUG", good), "") << good;
  }
  EXPECT_THAT(wrong("NCCL_DEBUG", "VERBOSE"), HasSubstr("none of VERSION WARN INFO"));
  EXPECT_EQ(wrong("NCCL_DEBUG_SUBSYS", "^INIT,net"), "");
  EXPECT_THAT(wrong("NCCL_DEBUG_SUBSYS", "INIT,NETS"), HasSubstr("'NETS'"));
  EXPECT_THAT(wrong("NCCL_DEBUG_SUBSYS", "INIT,,NET"), HasSubstr("missing"));
}

TEST(CheckVariables, AlgorithmsAndProtocolsHaveTheirOwnSyntax) {
  for (const char* good : {"Ring", "ring,TREE", "^NVLS,NVLSTree", "allreduce:tree,ring",
                           "ring;allreduce:tree;broadcast:^ring", "PAT"}) {
    EXPECT_EQ(wrong("NCCL_ALGO", good), "") << good;
  }
  EXPECT_THAT(wrong("NCCL_ALGO", "Rong"), HasSubstr("'Rong' is none of"));
  EXPECT_THAT(wrong("NCCL_ALGO", "alltoall:ring"), HasSubstr("'alltoall' is none of"));
  EXPECT_THAT(wrong("NCCL_ALGO", "ring;tree"), HasSubstr("names no collective"));
  EXPECT_THAT(wrong("NCCL_ALGO", "ring,"), HasSubstr("missing"));
  EXPECT_EQ(wrong("NCCL_PROTO", "^LL128"), "");
  EXPECT_THAT(wrong("NCCL_PROTO", "LL256"), HasSubstr("'LL256'"));
}

TEST(CheckDeviceList, NamesBeginOrAreWholeOrAreExcluded) {
  EXPECT_TRUE(DeviceList("eth").takes("eth1"));
  EXPECT_FALSE(DeviceList("=eth").takes("eth1"));
  EXPECT_TRUE(DeviceList("=lo,eth1").takes("eth1"));
  EXPECT_FALSE(DeviceList("^docker,lo").takes("docker0"));
  EXPECT_TRUE(DeviceList("^docker,lo").takes("eth0"));
  EXPECT_TRUE(DeviceList("^=lo").takes("lo1"));
  EXPECT_TRUE(DeviceList("mlx5_0:1").takes("mlx5_0", 1));
  EXPECT_FALSE(DeviceList("mlx5_0:1").takes("mlx5_0", 2));
  EXPECT_FALSE(DeviceList("").takes("eth0"));
  EXPECT_TRUE(DeviceList("^").takes("eth0"));
}

}  // namespace
}  // namespace weir
