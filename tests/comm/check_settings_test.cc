// SPDX-License-Identifier: Apache-2.0
// Which settings are in force.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/comm/check_machines.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using test::MachineTree;
using test::settings_of;

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
}

TEST(CheckSettings, WhatSaysWhichRankThisIsIsToldToo) {
  const MachineTree tree;
  const Settings settings = read_settings(
      tree.root(), {{"WEIR_RANK", "0"}, {"WEIR_MEET", "a:29500"}, {"WORLD_SIZE", "2"}}, "");
  ASSERT_THAT(settings.list, SizeIs(3));
  EXPECT_EQ(settings.find("WEIR_RANK")->value, "0");
  EXPECT_EQ(settings.find("WEIR_MEET")->value, "a:29500");
  EXPECT_EQ(settings.find("WORLD_SIZE")->value, "2");
}

TEST(CheckSettings, AFileThatIsNamedStandsForTheUsers) {
  const MachineTree tree;
  tree.write("/job.conf", "NCCL_DEBUG=WARN");
  tree.write("/folks/me/.nccl.conf", "NCCL_NET=IB\n");
  const Settings settings =
      read_settings(tree.root(), {{"NCCL_CONF_FILE", "/job.conf"}}, "/folks/me");
  EXPECT_THAT(settings.files, ElementsAre("/job.conf"));
  EXPECT_EQ(settings.find("NCCL_NET"), nullptr);
  EXPECT_EQ(settings.find("NCCL_DEBUG")->value, "WARN");
}

// Slashes at a root's end are none of its name.
TEST(CheckSettings, ARelativeNameIsOfThisMachineAlone) {
  const MachineTree tree;
  tree.write("/job.conf", "NCCL_DEBUG=WARN");
  const std::string here = std::filesystem::relative(tree.at("/job.conf"));
  ASSERT_EQ(here.substr(0, 2), "..");
  for (const std::string root : {"", "/", "//"}) {
    const Settings settings = read_settings(root, {{"NCCL_CONF_FILE", here}}, "");
    EXPECT_THAT(settings.unread, IsEmpty()) << root;
    ASSERT_NE(settings.find("NCCL_DEBUG"), nullptr) << root;
  }
  for (const std::string& root : {tree.root(), tree.root() + "/", tree.root() + "//"}) {
    EXPECT_THAT(read_settings(root, {{"NCCL_CONF_FILE", here}}, "").unread, SizeIs(1)) << root;
    EXPECT_THAT(read_settings(root, {{"NCCL_CONF_FILE", "job.conf"}}, "").unread, SizeIs(1));
    EXPECT_THAT(read_settings(root, {{"NCCL_CONF_FILE", "/job.conf"}}, "").files,
                ElementsAre("/job.conf"));
  }
}

TEST(CheckSettings, ANamedFileThatIsNotThereIsTold) {
  const MachineTree tree;
  for (const char* path : {"/none.conf", "none.conf"}) {
    const Settings settings = read_settings(tree.root(), {{"NCCL_CONF_FILE", path}}, "");
    ASSERT_THAT(settings.unread, SizeIs(1)) << path;
    EXPECT_EQ(settings.unread[0].path, path);
  }
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

}  // namespace
}  // namespace weir
